"""A stand-in for a scheduler: a job is a text file NAME.spool beside the runs, and other programs change its state.

The first line is the state (waits, runs, done, failed, cancelled); the rest is the output.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prime_train.away.job import JobState, Printer, Stage
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir

_STAGES: dict[str, Stage] = {"waits": "waits", "runs": "runs"}
_CODES = {"done": ExitCode.OK, "cancelled": ExitCode.RESUMABLE, "failed": ExitCode.RUN_FAILED}


@dataclass(frozen=True)
class SpoolRun:
    file: Path
    run_dir: None = None

    @property
    def run(self) -> str:
        return self.file.stem

    def submit(self) -> None:
        if self.file.exists() and self.look_up().is_active:
            fix = f"prime-train stop {self.run}"
            raise UserError(f"{self.run} is in the spool", str(self.file), "two jobs would write the same files", fix)
        self.file.write_text("waits\n", encoding="utf-8")

    def look_up(self, problem: UserError | None = None) -> JobState:
        del problem
        word = self._read()[0]
        lines, document = (("state", word),), {"version": 1, "kind": "spool", "run": self.run, "state": word}
        return JobState(_STAGES.get(word, "over"), f"it is {word}", lines, document, (word,), _CODES.get(word))

    def cancel(self, limit_s: float, printer: Printer) -> str:
        del limit_s, printer
        self.file.write_text("cancelled\n", encoding="utf-8")
        return f"{self.run} is cancelled"

    def logs(self, lines: int, printer: Printer, *, follow: bool) -> int:
        while follow and self.look_up().is_active:
            time.sleep(0.02)
        printer.write("".join(f"{line}\n" for line in self._read()[1:][-lines:]))
        return ExitCode.OK

    def _read(self) -> list[str]:
        return self.file.read_text(encoding="utf-8").splitlines()


def find(run: str, folder: Path, run_dir: RunDir | None) -> SpoolRun | None:
    file = folder / f"{run}.spool"
    return SpoolRun(file) if run_dir is None and file.exists() else None


def list_runs(folder: Path) -> Iterable[str]:
    return sorted(file.stem for file in folder.glob("*.spool"))
