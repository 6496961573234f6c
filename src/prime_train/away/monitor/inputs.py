"""Parses what the monitor reads: `prime-train status --wandb --json` and `sky jobs queue --output json`. Pure.

Both are output of other programs, so every field is checked, and a document that is not understood is "not known".
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, TypeGuard, get_args

from prime_train.away.monitor.decide import MonitoredJob, Verdict
from prime_train.away.sky.queue import parse_records
from prime_train.core.errors import UserError
from prime_train.views.text import sanitize

MOST_BYTES = 16 * 2**20
_LONGEST_WHY = 300
_MOST_STEPS = 10**12
_LONG_NAME = 36  # letters and digits of a name that may have been cut to 48 characters
_NO_LETTER = re.compile(r"[\W_]+")


class RunStatus(NamedTuple):
    """The part of the status document that the monitor uses."""

    verdict: Verdict
    why: str
    resumable: bool
    step: int | None


def parse_status(text: str) -> RunStatus:
    """The verdict of `status --wandb --json`: {"verdict": "crashed", "why": "...", "resumable": true, "step": 1200}.

    A document without a known verdict is "unknown". `resumable` is true only if it is exactly true.
    """
    document = _parse(text)
    if not isinstance(document, dict):
        return RunStatus("unknown", "the status is no JSON object", False, None)
    verdict: Any = document.get("verdict")
    if verdict not in get_args(Verdict):
        return RunStatus("unknown", "the status has no verdict", False, None)
    why = document.get("why")
    shown = sanitize(why)[:_LONGEST_WHY] if isinstance(why, str) else ""
    step = document.get("step")
    return RunStatus(verdict, shown, document.get("resumable") is True, step if _is_count(step) else None)


def parse_queue(text: str, name: str) -> tuple[MonitoredJob, ...] | None:
    """The managed jobs of the run `name`; None if the queue is not understood, because then none can be excluded.

    A job with several tasks has several records, and is live while one of them is.
    """
    try:
        records = parse_records(text)
    except UserError:
        return None
    found: dict[int, MonitoredJob] = {}
    for record in records:
        if record is None:
            return None
        if not _is_called(record.name, name):
            continue
        known = found.get(record.id)
        if known is None or not known.is_live:
            found[record.id] = MonitoredJob(record.id, record.state[:40], record.recoveries)
    return tuple(sorted(found.values()))


def _is_called(job_name: str, run_name: str) -> bool:
    """Whether a job is that of the run. Names of jobs allow fewer characters than names of runs, and are shorter.

    Letters and digits are compared. A job that is wrongly taken for the run's delays a resume; one that is wrongly
    taken for another's would get a second one beside it.
    """
    job, run = (_NO_LETTER.sub("", one).lower() for one in (job_name, run_name))
    return job == run or (len(job) >= _LONG_NAME and run.startswith(job))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS
