"""Joins a replica with the others for one step after another, by torchft. Trains nothing, writes no event.

The quorum is before each step, not beside it: so a replica that joins has the weights of the others before it computes,
and each row of a step is used by exactly one replica.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torchft.manager
from torch import Tensor
from torch.distributed import ReduceOp, TCPStore  # type: ignore[attr-defined]  # public, not in __all__ (torch 2.13)
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo, ProcessGroupNCCL

from prime_train.core.replica_files import read_lighthouse
from prime_train.trainer.attempt import Replica
from prime_train.trainer.parallel import NotCommittedError, World
from prime_train.trainer.replicas.life_sign import SignFile, Stage
from prime_train.trainer.replicas.limits import StepPace
from prime_train.trainer.replicas.ranks import agree

_QUORUM_LIMIT_S = 600.0  # then it is asked for again: a replica may be long away
_CONNECT_LIMIT_S = 10.0
_RETRY_S = 0.1
_LOOK_S = 0.5  # between two looks at the address of the lighthouse
_BUCKET_BYTES = 25 * 2**20  # of gradients that are summed at a time, as in DDP

State = dict[str, Any]


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
    _step: int = 0
    _began_s: float = 0.0  # the step, when its quorum was there
    _limit_s: float = 0.0  # of its sums
    _manager: Any = None
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
        self.sign.write("waits", step)
        self._repeat(lambda: self._join(step))
        self._step = self._manager.current_step()
        self.size, self.rank = self._manager.num_participants(), self._manager.participating_rank() or 0
        self.replica.leads = self.rank == 0 and self.replica.may_lead
        if self._read_known() != self._known:
            self.pace = self.pace.widen()
        self._limit_s = self.pace.limit_s
        self._set_limit(self._limit_s)
        self._began_s = time.monotonic()
        self._write_sign("works")
        return self._find_members()

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """See `Between`."""
        if self.size == 1:  # alone in this step: the sum is there already
            return
        self._write_sign("sums")
        for bucket in list_buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])  # one exchange for many small tensors
            self._manager.allreduce(flat, reduce_op=ReduceOp.SUM).wait()
            if self._manager.errored() is not None:
                # Its connections close: a replica that waits for this one in the same sum would wait until its limit.
                self._group.abort()
                break
            for tensor, part in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))
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

    def widen(self) -> None:
        """Allow more time from now on, for some steps that may be slow for a reason. Every replica does so."""
        self.pace = self.pace.widen()
        self._limit_s = self.pace.limit_s
        self._set_limit(self._limit_s)

    def give_up(self) -> None:
        """Make no sum with this quorum: a replica that waits for this one in a sum ends its wait."""
        self._group.abort()

    def leave(self) -> None:
        """End the heartbeats, so that the others do not wait for this replica."""
        self._disconnect()

    def connect(self, step: int) -> None:
        """Begin the heartbeats, by which the others know that this replica lives. `step` was committed last."""
        self._step = step
        self._repeat(lambda: self._connect(step))

    def _join(self, step: int) -> None:
        """Wait for a quorum. Raises what torchft raises, and LookupError when the lighthouse is another one."""
        if self._manager is None:  # on every rank of this replica, or on none
            self._connect(step)
        if self._read_address() != self._address:
            raise LookupError("another lighthouse has been started")
        # A replica that comes gets the state of another one now, and a large one takes long.
        self._set_limit(self.pace.healing_s)
        # In a thread, because torchft does not return from a quorum whose lighthouse is gone.
        joined: Future[None] = Future()
        Thread(target=_resolve, args=(joined, self._manager.start_quorum), name="quorum", daemon=True).start()
        while True:
            try:
                return joined.result(_LOOK_S)
            except FutureTimeoutError:
                if not joined.done() and self._read_address() != self._address:
                    raise LookupError("another lighthouse has been started") from None
                if joined.done():
                    return joined.result()

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
            self._disconnect()
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
        self._group = group = self._new_group(limit)
        with _on_address(self.replica.host):
            self._manager = torchft.manager.Manager(
                pg=group,
                load_state_dict=self.load_state,
                state_dict=self.read_state,
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
                # Over the connections of the group: torchft's default serves HTTP on every interface.
                checkpoint_transport=PGTransport(group, limit, self.settings.device),
                # All replicas begin with the weights of one seed, or of one checkpoint.
                init_sync=False,
            )
        self._manager.load_state_dict({"step": step, "batches_committed": 0})
        self._address = address

    def _read_known(self) -> tuple[int, str]:
        return int(self._manager._quorum_id), self._address  # torchft 0.2.0 shows it nowhere else

    def _write_sign(self, stage: Stage) -> None:
        self.sign.write(stage, self._step, self._limit_s, is_wide=self.pace.is_wide)

    def _set_limit(self, limit_s: float) -> None:
        """Let exchanges from now on end after so many seconds."""
        limit = timedelta(seconds=limit_s)
        self._manager._timeout = limit  # torchft 0.2.0 takes it at the start alone
        self._group.set_timeout(limit)  # of groups that it makes later; of each sum over NCCL
        if isinstance(self._group, ProcessGroupGloo) and self._group._pg is not None:
            self._group._pg._get_backend(self.settings.device)._set_default_timeout(limit)

    def _read_address(self) -> str:
        return read_lighthouse(self.settings.folder)

    def _new_group(self, limit: timedelta) -> Any:
        kind = ProcessGroupNCCL if self.settings.device.type == "cuda" else ProcessGroupGloo
        return kind(timeout=limit)

    def _disconnect(self) -> None:
        manager, self._manager, self._address = self._manager, None, ""
        if manager is not None:
            self._kept.append((manager, self._store))
            with suppress(Exception):  # a server that does not answer is left with the process
                manager.shutdown(wait=False)


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


def _resolve(joined: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
        joined.set_result(None)
    except Exception as error:
        joined.set_exception(error)


def list_buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors in buckets of one type each, in their order."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        own = tensor.numel() * tensor.element_size()
        if not buckets or buckets[-1][0].dtype != tensor.dtype or size + own > _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += own
    return buckets
