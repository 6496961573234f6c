"""Runs on other machines: the protocol of a job, and how the job of a run is found.

A scheduler is a package here and a name in SCHEDULERS. Its `find(run, folder, run_dir)` returns the job of a run by
what its submission left in the folder of runs, or in the run directory. Its `list_runs(folder)` returns the names of
the runs that have a job and no directory here. Both ask nobody. `status`, `runs`, `logs` and `stop` know only this
module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.views.run.runs import RUNS, is_run

SCHEDULERS = ("sky", "slurm")
_ASK_EVERY_S = 15.0  # while a log is followed, because a scheduler serves many users

Stage = Literal["waits", "runs", "over", "unknown"]


class JobState(NamedTuple):
    """A job as its scheduler shows it. `text` is one line for a person; `lines` and `document` belong to `status`.

    `changes`: what is new since the look before. `exit_code`: None before the end, and for a job that the scheduler
    has forgotten. `problem`: why the scheduler did not answer; the stage is "unknown" then.
    """

    stage: Stage
    text: str
    lines: tuple[tuple[str, str], ...] = ()
    document: Mapping[str, Any] = {}
    changes: tuple[str, ...] = ()
    exit_code: ExitCode | None = None
    problem: UserError | None = None

    @property
    def is_active(self) -> bool:
        """Whether the job is in the queue or runs."""
        return self.stage in ("waits", "runs")


class Printer(NamedTuple):
    """Where a job prints: `write` pieces of text to standard output, `note` and `problem` to standard error."""

    write: Callable[[str], None]
    note: Callable[[str], None]
    problem: Callable[[UserError], None]


class Job(Protocol):
    """A run that a scheduler starts on other machines. Each method asks the scheduler; nothing else does."""

    @property
    def run(self) -> str:
        """The name of the run."""

    @property
    def run_dir(self) -> RunDir | None:
        """The directory of the run, if this machine shares it; None if only the scheduler knows how the run is."""

    def submit(self) -> None:
        """Put the job into the queue, unless one of the run is there. Raises UserError."""

    def look_up(self, problem: UserError | None = None) -> JobState:
        """The job in the queue. With `problem`, why the scheduler was silent a moment ago, it is not asked again."""

    def cancel(self, limit_s: float, printer: Printer) -> str | None:
        """End the job, with a checkpoint where the scheduler allows one, and describe its end in one line.

        None if no job of the run is in the queue. Raises UserError if it runs on after `limit_s`.
        """

    def logs(self, lines: int, printer: Printer, *, follow: bool) -> int:
        """Print the last `lines` of its output (0: all) and return the exit code of the command.

        With a run directory: only until the first attempt has a log of its own.
        """


def find_job(run: str, here: Path) -> Job | None:
    """The job of the run that `run` names in the folder `here`; None for a run that never had one."""
    run_dir = next((RunDir(path) for path in (here / RUNS / run, here / run) if is_run(path)), None)
    return find_job_of(run, here / RUNS, run_dir)


def find_job_of(run: str, folder: Path, run_dir: RunDir | None) -> Job | None:
    """The job of a run of a folder of runs; `run_dir` is None for one that has no directory here."""
    for name in SCHEDULERS:
        job: Job | None = _load(name).find(run, folder, run_dir)
        if job is not None:
            return job
    return None


def list_jobs(folder: Path) -> Iterator[str]:
    """Names of the runs of a folder of runs that have a job and no run directory in it."""
    for name in SCHEDULERS:
        yield from _load(name).list_runs(folder)


def _load(name: str) -> ModuleType:
    return import_module(f"prime_train.away.{name}")


class QueueWatch:
    """Whether a job will write more of a log. Its scheduler is asked four times a minute at most."""

    def __init__(self, job: Job | None, printer: Printer) -> None:
        self._job = job
        self._printer = printer
        self._asked_s: float | None = None
        self._active = job is not None

    @property
    def active(self) -> bool:
        """Whether the job is in the queue. A scheduler that does not answer ends the watch."""
        now_s = time.monotonic()
        is_due = self._asked_s is None or now_s - self._asked_s > _ASK_EVERY_S
        if self._job is not None and self._active and is_due:
            state = self._job.look_up()
            self._asked_s, self._active = now_s, state.is_active
            if state.problem is not None:
                self._printer.problem(state.problem)
        return self._active
