"""Joins a replica with the others for one step after another, by torchft. Trains nothing, writes no event.

The quorum is before each step, not beside it: so a replica that joins has the weights of the others before it computes,
and each row of a step is used by exactly one replica. It is asked for as soon as the step before is committed, and the
answer is awaited before the rows are divided: the update of the weights and the metrics need no quorum.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torchft.manager
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__ (torch 2.13)
from torchft.checkpointing.pg_transport import PGTransport

from prime_train.core.replica_files import read_lighthouse
from prime_train.trainer.attempt import Replica
from prime_train.trainer.parallel import NotCommittedError, World
from prime_train.trainer.replicas.exchanges import new_group, set_limit, sum_in_buckets
from prime_train.trainer.replicas.life_sign import SignFile, Stage
from prime_train.trainer.replicas.lighthouse import HEARTBEAT_S
from prime_train.trainer.replicas.limits import StepPace
from prime_train.trainer.replicas.ranks import agree
from prime_train.trainer.replicas.request import OneRankClient, QuorumAsker, State

_QUORUM_LIMIT_S = 600.0  # then it is asked for again: a replica may be long away
_CONNECT_LIMIT_S = 10.0
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """What a quorum needs to know. `folder`: that of the life signs."""

    folder: Path
    min_replicas: int
    device: torch.device
    world: World  # the ranks of this replica


@dataclass(slots=True)
class Quorum:
    """The connection of one replica. `read_state` and `load_state` carry the training from one replica to another."""

    replica: Replica
    settings: QuorumSettings
    sign: SignFile
    read_state: Callable[[], State]
    load_state: Callable[[State], None]
    pace: StepPace  # `limit_s` of it is that of the next step's sums
    size: int = 0  # replicas in this step
    rank: int = 0  # of this replica among them
    members: tuple[int, ...] = ()  # their numbers, as far as they are known
    asks_ahead: bool = False  # the next step follows at once: its quorum is asked for when this one is committed
    _step: int = 0
    _began_s: float = 0.0  # the step, when its quorum was there
    _limit_s: float = 0.0  # of its sums
    _manager: Any = None
    _asker: Any = None  # of that manager
    _group: Any = None  # of the replicas in this step
    _store: Any = None  # kept, because the others connect to it
    _address: str = ""
    _known: tuple[int, str] = (-1, "")  # number and lighthouse of the quorum that `members` are of
    _kept: list[Any] = field(default_factory=list)  # managers that were left: their threads may still run

    def begin(self, step: int) -> bool:
        """Wait for the replicas of the next step; `step` was committed last. Returns whether the quorum has changed.

        Loads the state of another replica where this one is behind. Each quorum has a replica of machine 0, which
        writes for all.
        """
        has_changed = self._begin(step)
        if self.replica.here:
            while not agree(self.settings.world, self.replica.has_writer(self.members), self._step):
                time.sleep(_RETRY_S)
                has_changed = self._begin(self._step) or has_changed
        return has_changed

    def _begin(self, step: int) -> bool:
        self._step = step
        # Before the sign, because a replica that waits for the others is not killed: here it waits for its own ranks.
        agree(self.settings.world, True, step)
        if self._is_final:
            self._begin_step()
            return False
        self.sign.write("waits", step)
        self._repeat(lambda: self._join(step))
        self._step = self._manager.current_step()
        self.size, self.rank = self._manager.num_participants(), self._manager.participating_rank() or 0
        self.replica.leads = self.rank == 0 and self.replica.may_lead
        if self._read_known() != self._known:
            self.pace = self.pace.widen()
        self._begin_step()
        return self._find_members()

    def _begin_step(self) -> None:
        self._limit_s = self.pace.limit_s
        set_limit(self._manager, self._group, self.settings.device, self._limit_s)
        self._began_s = time.monotonic()
        self._write_sign("works")

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """See `Between`."""
        if self.size == 1:  # alone in this step: the sum is there already
            return
        self._write_sign("sums")
        if not sum_in_buckets(self._manager, tensors):
            # Its connections close: a replica that waits for this one in the same sum would wait until its limit.
            self._group.abort()
        self._write_sign("works")

    def average(self, tensor: Tensor) -> Any:
        """Begin to make a tensor its mean over the replicas, in place; returns torchft's work, which is waited for."""
        self._write_sign("sums")
        return self._manager.allreduce(tensor)

    def commit(self, steps: int = 1) -> None:
        """See `Between`. `steps`: how many it commits."""
        limit_s = self._limit_s
        if self.settings.world.size > 1:
            # The ranks of this replica wait for each other, and the last one may wait in a sum until its limit.
            self._write_sign("sums")
            limit_s *= 2
        if self._manager.errored() is not None:
            self._group.abort()
        if not self._manager.should_commit(timedelta(seconds=limit_s)):
            raise NotCommittedError
        self._step += steps
        self.pace = self.pace.add(time.monotonic() - self._began_s)
        if steps > 1:  # torchft counts commits
            self._manager.load_state_dict({"step": self._step, "batches_committed": self._step})
        elif self.asks_ahead and not self._is_final:
            # Also where the lighthouse is lost: `begin` asks the next one.
            with suppress(OSError, ValueError, LookupError, RuntimeError):
                self._ask()

    def widen(self) -> None:
        """Allow more time from now on, for some steps that may be slow for a reason. Every replica does so."""
        self.pace = self.pace.widen()
        if not self._asker.is_asked:  # else the connections may just be made, and the next step sets the limit
            self._limit_s = self.pace.limit_s
            set_limit(self._manager, self._group, self.settings.device, self._limit_s)

    def give_up(self) -> None:
        """Make no sum with this quorum: a replica that waits for this one in a sum ends its wait."""
        self._group.abort()

    def leave(self) -> None:
        """End the heartbeats, so that the others do not wait for this replica."""
        manager, self._manager, self._address = self._manager, None, ""
        if manager is not None:
            self._asker.end()
            self._kept.append((manager, self._store))
            with suppress(Exception):  # a server that does not answer is left with the process
                manager.shutdown(wait=False)

    def connect(self, step: int) -> None:
        """Begin the heartbeats, by which the others know that this replica lives. `step` was committed last."""
        self._step = step
        self._repeat(lambda: self._connect(step))

    @property
    def _is_final(self) -> bool:
        """Whether there is a quorum and no other can follow: the attempt has one replica, and none can join it."""
        return self.replica.count == 1 and self.size == 1 and self._manager is not None

    def _join(self, step: int) -> None:
        """Wait for a quorum. Raises what torchft raises, and LookupError when the lighthouse is another one."""
        if self._manager is None:  # on every rank of this replica, or on none
            self._connect(step)
        if not self._asker.is_asked:
            self._ask()
        self._asker.await_answer(self._check_lighthouse)

    def _ask(self) -> None:
        """Begin to ask for the quorum of the next step. LookupError when the lighthouse is another one."""
        self._check_lighthouse()
        # A replica that comes gets the state of another one now, and a large one takes long.
        set_limit(self._manager, self._group, self.settings.device, self.pace.healing_s)
        self._asker.ask(self._manager.start_quorum)

    def _check_lighthouse(self) -> None:
        if self._read_address() != self._address:
            raise LookupError("another lighthouse has been started")

    def _repeat(self, work: Callable[[], None]) -> None:
        """Do it until it succeeds on every rank of this replica.

        The launcher starts a lost lighthouse again, and ends what waits for too long.
        """
        while True:
            is_done = False
            try:
                work()
                is_done = True
            except Exception as error:  # torchft raises many kinds: for a lost lighthouse, for a late quorum
                logging.getLogger(__name__).warning("no quorum yet: %s", error)
            reached = self._step if self._manager is None else self._manager.current_step()
            if agree(self.settings.world, is_done, reached):
                return
            self.leave()
            time.sleep(_RETRY_S)

    def _find_members(self) -> bool:
        """Ask all replicas of a new quorum who they are. Whether it is a new one."""
        known = self._read_known()
        if known == self._known:
            return False
        present = torch.zeros(self.replica.count, dtype=torch.int64)
        present[self.replica.number] = 1
        present = present.to(self.settings.device)
        self.sum([present])
        if self._manager.errored() is None:  # else one of them is lost already, and the next quorum is another one
            self._known = known
            self.members = tuple(number for number, there in enumerate(present.tolist()) if there)
        return self._known == known

    def _connect(self, step: int) -> None:
        """A manager at the present lighthouse. Another lighthouse counts quorums from 1 again, so all begin again.

        Called by every rank of this replica. Rank 0 has a server for all of them, and the store of the replica.
        """
        world = self.settings.world
        found: tuple[str, int] | None = None
        try:
            if world.rank == 0:
                found = self._read_address(), self._serve_store()
                self._manage(step, *found)
        except Exception:
            found = None
            raise
        finally:
            found = world.share(found)  # also where there is none, because the others wait for it
        if world.rank > 0:
            if found is None:
                raise LookupError("rank 0 of this replica did not reach the lighthouse")
            self._manage(step, *found)

    def _serve_store(self) -> int:
        """Serve the store of this replica; returns the port."""
        host = self.replica.host
        serving = socket.create_server((host, 0))
        port: int = serving.getsockname()[1]
        self._store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=serving.detach())
        return port

    def _manage(self, step: int, address: str, port: int) -> None:
        """Take a manager for this rank. `port`: of the store of this replica."""
        limit, world = timedelta(seconds=self.pace.healing_s), self.settings.world
        self._group = group = new_group(self.settings.device, limit)
        self._asker = asker = QuorumAsker(self.read_state, self.load_state)
        with _on_address(self.replica.host):
            self._manager = torchft.manager.Manager(
                pg=group,
                load_state_dict=asker.load,
                state_dict=asker.read,
                min_replica_size=self.settings.min_replicas,
                use_async_quorum=False,
                timeout=limit,
                quorum_timeout=timedelta(seconds=_QUORUM_LIMIT_S),
                connect_timeout=timedelta(seconds=_CONNECT_LIMIT_S),
                rank=world.rank,
                world_size=world.size,
                store_addr=self.replica.host,
                store_port=port,
                lighthouse_addr=address,
                replica_id=f"replica{self.replica.number:06}",  # torchft orders them as text, and the first one leads
                hostname=self.replica.host,
                heartbeat_interval=timedelta(seconds=HEARTBEAT_S),
                # Over the connections of the group: torchft's default serves HTTP on every interface.
                checkpoint_transport=PGTransport(group, limit, self.settings.device),
                # All replicas begin with the weights of one seed, or of one checkpoint.
                init_sync=False,
            )
        if world.size == 1:
            self._manager._client = OneRankClient(self._manager._client)
        self._manager.load_state_dict({"step": step, "batches_committed": 0})
        self._address = address

    def _read_known(self) -> tuple[int, str]:
        return int(self._manager._quorum_id), self._address  # torchft 0.2.0 shows it nowhere else

    def _write_sign(self, stage: Stage) -> None:
        self.sign.write(stage, self._step, self._limit_s, is_wide=self.pace.is_wide)

    def _read_address(self) -> str:
        return read_lighthouse(self.settings.folder)


@contextmanager
def _on_address(host: str) -> Iterator[None]:
    """Have the server of a manager listen on one address. torchft 0.2.0 has no setting: it takes every interface."""
    server = torchft.manager.ManagerServer

    def start(**settings: Any) -> Any:
        return server(**settings | {"bind": f"{host}:0"})

    torchft.manager.ManagerServer = start
    try:
        yield
    finally:
        torchft.manager.ManagerServer = server
