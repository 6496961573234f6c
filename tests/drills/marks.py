"""What a fault leaves for the judge, beside the run: when it struck, what it damaged, whom it started."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.process_id import Identity, identify


@dataclass(frozen=True, slots=True)
class Marks:
    """Files in the folder of a drill. Written by whoever harms the run, from whatever process."""

    folder: Path

    def strike(self, at_s: float | None = None) -> None:
        """The fault is at this moment. Only the first one counts."""
        if self.fault_s is None:
            self._append("fault_s", f"{time.time() if at_s is None else at_s:.6f}")

    def damage(self, step: int) -> None:
        """This checkpoint is not to be counted on any more."""
        self._append("damaged", str(step))

    def started(self, pid: int) -> None:
        """A process that has to be gone at the end."""
        found = identify(pid)
        if found is not None:
            self._append("started", str(found))

    def _append(self, name: str, line: str) -> None:
        fd = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    @property
    def fault_s(self) -> float | None:
        """Seconds since the epoch."""
        return next((float(line) for line in self._lines("fault_s")), None)

    @property
    def damaged(self) -> frozenset[int]:
        return frozenset(int(line) for line in self._lines("damaged"))

    @property
    def living(self) -> list[Identity]:
        """Those of the processes that were started and have not ended."""
        named = (line.split(":") for line in self._lines("started"))
        found = (Identity(int(pid), int(ticks)) for pid, ticks in named)
        return [process for process in found if process.alive]
