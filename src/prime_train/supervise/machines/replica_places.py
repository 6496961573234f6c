"""The replicas of the other machines: machine 0 sees their signs, and each machine learns where the lighthouse is.

A machine that is lost costs its own replicas alone. The relay asks here what that means. Opens no connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.core import outside
from prime_train.core.outside import parse_json
from prime_train.core.replica_files import LIGHTHOUSE, SIGN_BYTES, find_port, sign_path
from prime_train.core.rundir import make_folder, write_atomic
from prime_train.events import ReplicaLost
from prime_train.events.bounds import MOST_STEPS
from prime_train.supervise.machines.protocol import Lost, Message

_SIGN_S = 0.5  # between two signs of one replica


@dataclass(slots=True)
class OtherReplicas:
    """What machine 0 knows of the replicas of the other machines. `folder`: that of the signs on machine 0."""

    folder: Path
    attempt: int
    here: int  # replicas of each machine
    least: int  # without which no step is made
    lost: set[int] = field(default_factory=set)  # machines that were lost in this attempt
    _steps: dict[int, int] = field(default_factory=dict)  # of each replica, by its latest sign
    _ports: dict[int, int | None] = field(default_factory=dict)  # of the lighthouse, as each machine knows it

    def begin(self, rank: int) -> None:
        """A machine has joined, which knows of no lighthouse."""
        self._ports.pop(rank, None)

    def find_news(self, rank: int) -> int | None:
        """The port of the lighthouse, once for each machine; None where it knows it."""
        port = find_port(self.folder)
        if port == self._ports.get(rank):
            return None
        self._ports[rank] = port
        return port

    def keep_sign(self, rank: int, replica: int, text: str) -> None:
        """Write the sign of a replica where those of machine 0 are. Raises Lost where it is none of that machine's."""
        try:
            if replica not in self._list_numbers(rank) or len(text) > SIGN_BYTES:
                raise ValueError
            step = int(parse_json(text)["step"])
            if not 0 <= step <= MOST_STEPS:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise Lost(f"it sent what is no sign of its replicas: {text[:80]}") from None
        self._steps[replica] = step
        make_folder(self.folder)
        write_atomic(sign_path(self.folder, replica), text)

    def lose(self, rank: int, what: str) -> Iterator[ReplicaLost]:
        """Forget the replicas of a machine; returns an event for each of them. They start when it joins again."""
        self.lost.add(rank)
        for number in self._list_numbers(rank):
            sign_path(self.folder, number).unlink(missing_ok=True)
            yield ReplicaLost(self.attempt, number, self._steps.pop(number, 0), what, 0.0)

    def count(self, machines: int) -> int:
        """The replicas of so many other machines and of machine 0."""
        return (machines + 1) * self.here

    def _list_numbers(self, rank: int) -> range:
        return range(rank * self.here, (rank + 1) * self.here)


@dataclass(slots=True)
class OwnReplicas:
    """The replicas of a machine other than 0. `folder`: that of the signs, which its launcher has, too."""

    folder: Path
    numbers: range
    lighthouse_host: str
    _sent: dict[int, str] = field(default_factory=dict)
    _sent_s: float = 0.0

    def take_port(self, port: int) -> None:
        """Write the address of the lighthouse for the replicas. Raises Lost."""
        if not self.numbers or not 0 < port < 2**16:
            raise Lost(f"it sent port {port} of a lighthouse")
        make_folder(self.folder)
        write_atomic(self.folder / LIGHTHOUSE, f"http://{self.lighthouse_host}:{port}")

    def list_signs(self) -> list[Message]:
        """The signs that have changed since, for machine 0."""
        if time.monotonic() < self._sent_s + _SIGN_S:
            return []
        found = dict(self._read_signs())
        changed = {number: text for number, text in found.items() if self._sent.get(number) != text}
        if changed:
            self._sent, self._sent_s = found, time.monotonic()
        return [{"kind": "sign", "replica": number, "text": text} for number, text in changed.items()]

    def _read_signs(self) -> Iterator[tuple[int, str]]:
        for number in self.numbers:
            with suppress(OSError, ValueError, TypeError, KeyError):
                text = outside.read_text(sign_path(self.folder, number), SIGN_BYTES, self.folder).strip()
                parse_json(text)["step"]  # a reader may come between two halves of a write
                yield number, text
