"""The attempt of this process: its run, its event log, its place among the ranks, and the requests that stop it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.machines import LOOPBACK, Machines, read_machines
from prime_train.core.process_id import Identity, parse_identity
from prime_train.core.rundir import RunDir
from prime_train.events import Event, EventLog
from prime_train.spec import RunSpec, from_json


class Ranks(NamedTuple):
    """`rank` of `size` on all machines together, and `local_rank` of `local_size` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    machines: Machines | None = None  # None = one machine


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """What torchrun sets for its own machine, and the machines of the run: each has a torchrun of its own."""
    local_rank, local_size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    machines = read_machines(environment)
    if machines is None:
        return Ranks(local_rank, local_size, local_rank, local_size)
    return Ranks(machines.rank * local_size + local_rank, machines.count * local_size, local_rank, local_size, machines)


REPLICA_ENV, REPLICAS_ENV = "PRIME_TRAIN_REPLICA", "PRIME_TRAIN_REPLICAS"
RESTART_ENV = "PRIME_TRAIN_REPLICA_RESTART"  # how often this replica was started again in the attempt
HOST_ENV, HERE_ENV = "PRIME_TRAIN_REPLICA_HOST", "PRIME_TRAIN_REPLICAS_HERE"  # set on several machines


@dataclass(slots=True)
class Replica:
    """One of the groups of processes that outlive each other. `leads`: it writes for all of them, by the quorum."""

    number: int
    count: int
    restarts: int = 0
    leads: bool = False
    host: str = LOOPBACK  # the address under which the replicas of other machines reach this one
    here: int = 0  # replicas of each machine; 0 = one machine has all

    @property
    def may_lead(self) -> bool:
        """Whether it is on machine 0, which has the run directory."""
        return self.has_writer((self.number,))

    def has_writer(self, members: Sequence[int]) -> bool:
        """Whether one of these replicas is on machine 0. The first one leads."""
        return not self.here or min(members, default=0) < self.here


def read_replica(environment: Mapping[str, str]) -> Replica | None:
    """The replica of this process; None without replicas. Before the first quorum the first one leads."""
    if REPLICA_ENV not in environment:
        return None
    number, count, restarts = (int(environment.get(name, "0")) for name in (REPLICA_ENV, REPLICAS_ENV, RESTART_ENV))
    host, here = environment.get(HOST_ENV, LOOPBACK), int(environment.get(HERE_ENV, "0"))
    return Replica(number, count, restarts, leads=number == 0 and restarts == 0, host=host, here=here)


@dataclass(frozen=True, slots=True)
class Attempt:
    run: RunSpec
    run_dir: RunDir
    number: int
    resume_step: int  # 0 = no checkpoint
    events: EventLog
    rank: int
    replica: Replica | None = None  # None without replicas

    @property
    def leads(self) -> bool:
        """Whether this process writes what holds for all: it is rank 0, and of the replica that leads."""
        return self.rank == 0 and (self.replica is None or self.replica.leads)

    def number_rank(self, ranks: int) -> int:
        """The number of this process among those of all replicas, each with so many ranks."""
        return self.rank if self.replica is None else self.replica.number * ranks + self.rank

    def emit(self, event: Event) -> None:
        """Write an event that holds for all ranks; only one writes it."""
        if self.leads:
            self.events.append(event)

    def take_save_request(self) -> bool:
        """Whether a save is requested. Rank 0 removes the file and votes for all, so one request is one save."""
        if not self.leads:
            return False
        with suppress(OSError):
            self.run_dir.save_request(self.number).unlink()
            return True
        return False


def read_run(run_dir: RunDir) -> RunSpec:
    """The run of a directory, from resolved.json. Raises UserError."""
    from pydantic import ValidationError

    try:
        return from_json(outside.read_text(run_dir.resolved, outside.RECORD_BYTES, run_dir.path))
    except (OSError, ValueError) as error:
        faults = error.errors() if isinstance(error, ValidationError) else []
        first = f"{len(faults)} faults, first {faults[0]['msg']}" if faults else str(error)
        what = f"it is not a valid run: {first}"
        why = "it was edited, or written by another version"
        raise UserError(what, str(run_dir.resolved), why, "run `prime-train run` again with the config") from error


SUPERVISOR_ENV = "PRIME_TRAIN_SUPERVISOR"  # "PID:START_TICKS"
_WATCH_INTERVAL_S = 1.0
_CHECK_INTERVAL_S = 0.1
_ORPHANED = 1


class StopFlag:
    """A stop request by SIGTERM, SIGINT or the existence of a file. Checked between steps and during the set-up."""

    def __init__(self, request: Path) -> None:
        self._request = request
        self._signalled = False

    def listen(self) -> None:
        """Make SIGTERM and SIGINT set the flag instead of ending the process. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def is_requested(self) -> bool:
        return self._signalled or self._request.exists()

    @contextmanager
    def exit_on_stop(self, before_exit: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a stop exits the process with 0 after `before_exit`: there is nothing to save yet.

        A thread checks the flag, because a download or a wait for a rank is one long call. An error after a stop
        request counts as part of the stop: most often it comes from a rank that has already ended.
        """
        left = threading.Event()
        ending = threading.Lock()  # never released, so that `before_exit` is called once

        def end() -> None:
            ending.acquire()
            before_exit()
            os._exit(0)

        def watch() -> None:
            while not left.is_set():
                if self.is_requested():
                    end()
                left.wait(_CHECK_INTERVAL_S)

        watcher = threading.Thread(target=watch, name="stop-watch", daemon=True)
        watcher.start()
        try:
            yield
        except Exception:
            if self.is_requested():
                end()
            raise
        finally:
            left.set()
            watcher.join()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True


def watch_supervisor() -> None:
    """End this process with the supervisor named in the environment, because the next one uses its run directory."""
    named = os.environ.get(SUPERVISOR_ENV)
    if not named:
        return
    threading.Thread(target=_watch, args=(parse_identity(named),), name="supervisor-watch", daemon=True).start()


def _watch(supervisor: Identity) -> None:
    while supervisor.alive:
        time.sleep(_WATCH_INTERVAL_S)
    with suppress(OSError):  # a full disk must not keep this process alive
        os.write(2, b"prime-train trainer: the supervisor is gone; ending\n")
    os._exit(_ORPHANED)  # from a thread, past a hung step, without waiting for a save
