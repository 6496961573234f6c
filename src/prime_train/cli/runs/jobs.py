"""The state of runs on other machines: by what is here alone, or with a question to their scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prime_train.away.job import Job, JobState, find_job_of
from prime_train.cli.jobs import JobQuestions
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.views.compare.listing import NOT_KNOWN
from prime_train.views.compare.rows import UNREADABLE, RunRow
from prime_train.views.text import date

_MOST_ASKED = 50  # each question takes a tenth of a second, or ten where the scheduler is slow
_ENDS = {ExitCode.OK: "finished", ExitCode.RESUMABLE: "stopped", None: "over"}
_ASK = "`runs --ask` asks for it"


def add_jobs(rows: Iterable[RunRow], away: Iterable[str], folder: Path, now_s: float, *, asks: bool) -> list[RunRow]:
    """The rows with the state of their jobs, and a row for each run that is only `away`. Asks no one unless `asks`."""
    questions, left = JobQuestions(), _MOST_ASKED if asks else 0
    found = []
    for row, job in (*_with_jobs(rows, folder), *_only_away(away, folder)):
        if job is None:
            found.append(row)
            continue
        state = questions.look_up(job) if left > 0 else None
        left -= 1
        found.append(_leave_open(row) if state is None else _join(row, state, now_s))
    return found


def _with_jobs(rows: Iterable[RunRow], folder: Path) -> Iterator[tuple[RunRow, Job | None]]:
    """Each row with its job, if the job may change the row."""
    for row in rows:
        yield row, find_job_of(row.name, folder, RunDir(row.path)) if row.is_open else None


def _only_away(names: Iterable[str], folder: Path) -> Iterator[tuple[RunRow, Job | None]]:
    for name in names:
        row = RunRow(folder / name, name, "away")
        try:
            job = find_job_of(name, folder, None)
        except UserError as error:
            yield row._replace(state=UNREADABLE, reason=error.what), None
            continue
        if job is not None and job.run_dir is None:  # else it has a directory, and so a row
            yield row, job


def _leave_open(row: RunRow) -> RunRow:
    """The row by what is here."""
    seen = f"state as of {date(row.seen_s)}" if row.seen_s is not None else "no event of it is here"
    return _because(_doubt(row), f"{seen}; its job was not asked: {_ASK}")


def _join(row: RunRow, job: JobState, now_s: float) -> RunRow:
    """The row with the answer of the scheduler."""
    if job.problem is not None:
        return _because(_doubt(row), f"its job is not known: {job.problem.what}")
    row = _because(row, f"{job.text}, as of {date(now_s)}")
    step, last = job.document.get("step"), job.document.get("max_steps")
    if row.state == "away":
        word = {"waits": "queued", "runs": "running"}.get(job.stage) or _ENDS.get(job.exit_code, "failed")
        return row._replace(state=word, step=step, max_steps=last)
    if job.stage == "waits":
        return row._replace(state="queued")
    if job.stage == "runs":
        return row._replace(state="starting") if row.state in ("died", "not started") else row
    return row._replace(state="died" if row.seen_s is not None else "not started")


def _doubt(row: RunRow) -> RunRow:
    """Without a supervisor that is seen, a run is dead, or waits for a machine."""
    return row._replace(state=NOT_KNOWN) if row.state in ("died", "not started") else row


def _because(row: RunRow, reason: str) -> RunRow:
    return row._replace(reason="; ".join(filter(None, (row.reason, reason))))
