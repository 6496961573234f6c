"""Keeps the processes of one replica as one: its ranks start together, and the loss of one is the loss of all.

Never imports torch. Inside a replica the ranks find each other at a store on 127.0.0.1, which rank 0 serves.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prime_train.core.errors import ExitCode
from prime_train.core.machines import LOOPBACK


class RankProcess(Protocol):
    """What is used of a process. `subprocess.Popen` has all of it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...


StartRank = Callable[[Sequence[str], Mapping[str, str]], RankProcess]


@dataclass(slots=True)
class GroupProcesses:
    """The processes of one replica, which end together. The first one is rank 0."""

    ranks: list[RankProcess]
    _failed: list[int] = field(default_factory=list)  # exit codes of the ranks that were lost by themselves

    @property
    def pid(self) -> int:
        """The process of rank 0, which writes the signs."""
        return self.ranks[0].pid

    def poll(self) -> int | None:
        """The exit code of the replica; None while any rank runs. Once a rank has failed, the others are killed."""
        codes = [rank.poll() for rank in self.ranks]
        if not self._failed and (found := [code for code in codes if code]):
            self._failed = found
            self.kill()
        if None in codes:
            return None
        return choose_code(self._failed)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all ranks have ended. Raises subprocess.TimeoutExpired."""
        began_s = time.monotonic()
        for rank in self.ranks:
            rank.wait(None if timeout is None else max(0.0, began_s + timeout - time.monotonic()))
        return self.poll() or 0

    def send_signal(self, number: int) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()


def choose_code(codes: Sequence[int]) -> int:
    """The exit code of a replica, from those of the ranks that failed at once; 0 for none.

    A failure that would come again comes first, then a signal: the others failed because their peer was gone.
    """
    return min(codes, key=lambda code: (code != ExitCode.RUN_FAILED, code >= 0), default=0)


def start_group(
    start: StartRank, arguments: Sequence[str], variables: Mapping[str, str], number: int, size: int
) -> GroupProcesses:
    """Start the `size` ranks of a replica, whose number on this machine is `number`. Raises OSError."""
    together = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(_find_port()), "WORLD_SIZE": str(size)} if size > 1 else {}
    group = GroupProcesses([])
    try:
        for rank in range(size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(number * size + rank)}  # the latter is the GPU of this process
            group.ranks.append(start(arguments, {**variables, **together, **own}))
    except OSError:
        group.kill()
        raise
    return group


def forget_times(folder: Path, number: int, size: int) -> None:
    """Drop the times of a lost replica: the slow ranks are found among those that train."""
    for rank in range(number * size, (number + 1) * size):
        with suppress(OSError):
            (folder / f"rank{rank}.times").unlink()


def _find_port() -> int:
    """A port that is free at present. If another program takes it meanwhile, the replica is lost and starts again."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
