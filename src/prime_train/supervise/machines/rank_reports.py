"""The times of the ranks of another machine, on their way to machine 0, whose watch compares all ranks of a run.

Opens no connection, and judges no rank.
"""

from __future__ import annotations

import base64
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.core.rank_times import keep_content, read_content
from prime_train.core.rundir import RunDir
from prime_train.supervise.machines.protocol import Lost, Message

_EVERY_S = 1.0  # a file has the latest 64 steps, and a rank that is 20 behind the others counts as lost


@dataclass(slots=True)
class OwnTimes:
    """The ranks of a machine other than 0 in one attempt."""

    run_dir: RunDir
    attempt: int
    ranks: range
    _sent: dict[int, bytes] = field(default_factory=dict)
    _sent_s: float = 0.0

    def list_new(self) -> list[Message]:
        """A message for each rank that has made steps since the last message, at most one a second."""
        if time.monotonic() < self._sent_s + _EVERY_S:
            return []
        self._sent_s = time.monotonic()
        folder, found = self.run_dir.rank_times(self.attempt), list[Message]()
        for rank in self.ranks:
            content = read_content(folder, rank, self.run_dir.path)
            if content is not None and content != self._sent.get(rank):
                self._sent[rank] = content
                found.append({"kind": "times", "rank": rank, "text": base64.b64encode(content).decode("ascii")})
        return found


def keep_times(folder: Path, ranks: range, message: Message) -> None:
    """Write what a machine with these ranks sent, beside the files of machine 0. A full disk costs the times alone.

    Raises Lost where it is none of theirs.
    """
    rank: int = message["rank"]
    try:
        if rank not in ranks:
            raise ValueError(f"rank {rank} is none of its ranks")
        content = base64.b64decode(message["text"], validate=True)
        with suppress(OSError):
            keep_content(folder, rank, content)
    except ValueError as error:  # base64 raises one too
        raise Lost(f"it sent what are no times of its ranks: {error}") from None
