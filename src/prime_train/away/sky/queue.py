"""Reads the queue of managed jobs, as `sky jobs queue --output json` prints it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from prime_train.core.errors import ExitCode, UserError

# Source: sky/jobs/state.py of skypilot 0.14.1, ManagedJobStatus. Any other state counts as live.
ENDED = frozenset({"SUCCEEDED", "CANCELLED", "FAILED", "FAILED_SETUP", "FAILED_PRECHECKS", "FAILED_NO_RESOURCE",
                   "FAILED_CONTROLLER"})  # fmt: skip

_LONGEST_TEXT = 2_000
_MOST_JOBS = 100_000


class ManagedJob(NamedTuple):
    """One managed job.

    Times are seconds since the epoch; `run_s` is the time that it ran on machines. Source of the fields: skypilot
    0.14.1, ManagedJobRecord.
    """

    id: int
    name: str
    state: str
    recoveries: int = 0
    submitted_s: float | None = None
    run_s: float = 0.0
    cloud: str = ""
    region: str = ""
    accelerators: str = ""
    failure: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


def parse_queue(text: str) -> tuple[ManagedJob, ...]:
    """The jobs of a queue, the newest first, without records that are not understood. Errors: see parse_records."""
    return tuple(sorted((job for job in parse_records(text) if job is not None), key=lambda job: -job.id))


def parse_records(text: str) -> list[ManagedJob | None]:
    """Each record of a queue, None where it is not understood. Raises UserError for a text that is not a queue.

    A job with several tasks has several records. Lines before the document, such as a hint about a new version, are
    skipped. Unknown states are kept as they are.
    """
    start = min((found for found in (text.find("[\n"), text.find("[]"), text.find("[{")) if found >= 0), default=-1)
    try:
        document = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, list) or len(document) > _MOST_JOBS:
        what, why = "its answer is no list of jobs", f"it begins with {text[:80]!r}"
        fix = "run it by hand; prime-train reads the format of skypilot 0.14"
        raise UserError(what, "sky jobs queue --output json", why, fix, ExitCode.OUT_OF_REACH)
    return list(map(_job, document))


def find_job(jobs: Iterable[ManagedJob], name: str) -> ManagedJob | None:
    """The newest job of that name; a live one comes before a newer one that is over."""
    named = [job for job in jobs if job.name == name]
    return next((job for job in named if not job.is_over), named[0] if named else None)


def _job(entry: Any) -> ManagedJob | None:
    if not isinstance(entry, dict):
        return None
    number, state = entry.get("job_id"), entry.get("status")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0 or not isinstance(state, str):
        return None
    return ManagedJob(
        id=number,
        name=_text(entry.get("job_name") or entry.get("task_name")),
        state=_text(state).rpartition(".")[2].upper(),
        recoveries=int(_number(entry.get("recovery_count")) or 0),
        submitted_s=_number(entry.get("submitted_at")),
        run_s=_number(entry.get("job_duration")) or 0.0,
        cloud=_text(entry.get("cloud")),
        region=_text(entry.get("region")),
        accelerators=_accelerators(entry.get("accelerators")),
        failure=_text(entry.get("failure_reason")),
    )


def _accelerators(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    return ", ".join(f"{_number(count) or 0:g}x {_text(name)}" for name, count in list(value.items())[:4])


def _text(value: Any) -> str:
    """Printable characters of a text from outside, cut to a length; "" for anything else."""
    return "".join(c if c.isprintable() else " " for c in value[:_LONGEST_TEXT]) if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
