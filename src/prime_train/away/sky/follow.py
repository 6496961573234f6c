"""Describes the phases of a managed job, one line for each. Pure: a view and a reading give a view and lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.away.sky.candidates import Candidate
from prime_train.away.sky.commands import clouds
from prime_train.away.sky.queue import ManagedJob
from prime_train.away.sky.record import JobRecord
from prime_train.core.units import format_seconds, format_usd
from prime_train.spec import ENDLESS_STEPS

_STEP = re.compile(r":\d\d  step ([\d,]+)\b")
_RESUMED = re.compile(r"\battempt \d+ resumes from step (\d+)")
_SAVED = re.compile(r"\bcheckpoint of step (\d+) complete")
_LONGEST_LOG = 2**20  # characters of its end that are read
_EVERY_PART = 0.1  # part of the run after which a step is reported again
_EVERY_STEPS = 100  # of a command whose last step is not known


class JobView(NamedTuple):
    """What was reported of a job. `billed_s`, `billed_usd`: the time that is paid so far, and its price."""

    state: str = ""
    place: str = ""
    recoveries: int = 0
    step: int = 0
    saved_step: int = 0
    resumed_step: int | None = None
    shown_step: int = 0
    billed_s: float = 0.0
    billed_usd: float = 0.0


class JobProgress(NamedTuple):
    """What the output of a job reports: its last step, its newest checkpoint, and where its last attempt began."""

    step: int = 0
    saved_step: int = 0
    resumed_step: int | None = None


def read_progress(log: str) -> JobProgress:
    """The progress in the output of `prime-train run`. Each number is that of its last line."""
    tail = log[-_LONGEST_LOG:]
    step, saved, resumed = (_last(pattern, tail) for pattern in (_STEP, _SAVED, _RESUMED))
    return JobProgress(step or 0, saved or 0, resumed)


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.findall(text)
    return int(found[-1].replace(",", "")[:15]) if found else None


def report(
    view: JobView, job: ManagedJob, progress: JobProgress, prices: tuple[Candidate, ...], max_steps: int
) -> tuple[JobView, tuple[str, ...]]:
    """The view after a reading of the queue and the output, and the lines to print."""
    usd_per_hour = _price(job, prices)
    view = _bill(view, job, usd_per_hour)
    lines: list[str] = []
    if job.recoveries > view.recoveries or (job.state == "RECOVERING" and view.state != "RECOVERING"):
        lines.append(f"preempted at step {max(view.step, progress.step):,}; {_cost(view)}")
        view = view._replace(recoveries=max(view.recoveries + (job.state == "RECOVERING"), job.recoveries))
        view = view._replace(place="", resumed_step=None)
    place = ", ".join(filter(None, (_title(job.cloud), job.region, job.accelerators)))
    if job.state in ("STARTING", "RECOVERING") and (job.state != view.state or place != view.place) and place:
        lines.append(f"provisioning: {place}{_rate(usd_per_hour)}")
        view = view._replace(place=place)
    elif job.state != view.state and job.state in _WORDS:
        lines.append(_WORDS[job.state])
    if job.state == "RUNNING":
        view, more = _report_running(view, job, progress, place + _rate(usd_per_hour), max_steps)
        lines += more
    if job.is_over and view.state != job.state:
        failure = f": {job.failure}" if job.failure else ""
        lines.append(f"{job.state.lower().replace('_', ' ')}{failure}; {_cost(view)}")
    return view._replace(state=job.state), tuple(lines)


_WORDS = {"PENDING": "waiting for SkyPilot's controller", "STARTING": "provisioning", "CANCELLING": "cancelling"}


def _report_running(
    view: JobView, job: ManagedJob, progress: JobProgress, where: str, max_steps: int
) -> tuple[JobView, list[str]]:
    lines: list[str] = []
    if view.state != "RUNNING":
        lines.append(f"running: {where}" if where else "running")
    if progress.resumed_step is not None and progress.resumed_step != view.resumed_step:
        lines.append(f"recovered from step {progress.resumed_step:,}; {_cost(view)}")
    if progress.saved_step > view.saved_step:
        lines.append(f"syncing: checkpoint of step {progress.saved_step:,}")
    every = _EVERY_STEPS if max_steps >= ENDLESS_STEPS else max(1, _EVERY_PART * max_steps)
    if progress.step - view.shown_step >= every:
        lines.append(f"step {_describe_step(progress.step, max_steps)}; {_cost(view)}")
        view = view._replace(shown_step=progress.step)
    resumed = view.resumed_step if progress.resumed_step is None else progress.resumed_step
    return view._replace(step=progress.step or view.step, saved_step=max(view.saved_step, progress.saved_step),
                         resumed_step=resumed, recoveries=job.recoveries), lines  # fmt: skip


def _describe_step(step: int, max_steps: int | None) -> str:
    return f"{step:,}" if max_steps is None or max_steps >= ENDLESS_STEPS else f"{step:,} of {max_steps:,}"


def _price(job: ManagedJob, prices: tuple[Candidate, ...]) -> float | None:
    """USD per hour of the job's machine by the price table; None if it is not known."""
    here = [item for item in prices if item.cloud == job.cloud.lower() and item.usd_per_hour is not None]
    exact = [item for item in here if not job.accelerators or item.accelerator in job.accelerators]
    return exact[0].usd_per_hour if exact else None


def _bill(view: JobView, job: ManagedJob, usd_per_hour: float | None) -> JobView:
    billed_s = max(view.billed_s, job.run_s)  # not a sum: a sum may round, and a repeated reading would add a cent
    added_usd = (billed_s - view.billed_s) / 3600 * (usd_per_hour or 0)
    return view._replace(billed_s=billed_s, billed_usd=view.billed_usd + added_usd)


def _cost(view: JobView) -> str:
    if not view.billed_usd:
        return f"{format_seconds(view.billed_s)} so far, price not known" if view.billed_s else "no cost so far"
    return f"{format_seconds(view.billed_s)} and {format_usd(view.billed_usd)} so far"


def _rate(usd_per_hour: float | None) -> str:
    return f" at {format_usd(usd_per_hour)} an hour" if usd_per_hour is not None else ""


def _title(cloud: str) -> str:
    known = clouds().get(cloud.lower())
    return cloud if known is None else known.title


JSON_VERSION = 1


def describe_job(job: ManagedJob, progress: JobProgress, record: JobRecord) -> dict[str, Any]:
    usd_per_hour = _price(job, record.candidates)
    usd = None if usd_per_hour is None else round(job.run_s / 3600 * usd_per_hour, 2)
    return {
        "version": JSON_VERSION,
        "kind": "managed_job",
        "run": record.run,
        "job_id": job.id,
        "state": job.state,
        "is_over": job.is_over,
        "cloud": job.cloud or None,
        "region": job.region or None,
        "step": progress.step or None,
        "max_steps": record.max_steps if record.max_steps < ENDLESS_STEPS else None,
        "newest_checkpoint": progress.saved_step or None,
        "recoveries": job.recoveries,
        "billed_s": job.run_s,
        "usd": usd,
        "bucket": record.bucket or None,
        "failure": job.failure or None,
        "accelerators": job.accelerators or None,
    }


def as_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The document of a managed job as labelled lines; unknown values are left out."""
    found = document
    machine = (_title(found["cloud"]), found["region"], found["accelerators"]) if found["cloud"] else ()
    lines = [
        ("state", found["state"].lower()),
        ("managed job", str(found["job_id"])),
        ("machine", ", ".join(filter(None, machine))),
        ("step", _describe_step(found["step"], found["max_steps"]) if found["step"] else ""),
        ("checkpoint", f"step {found['newest_checkpoint']:,}" if found["newest_checkpoint"] else ""),
        ("recoveries", str(found["recoveries"])),
        ("billed", format_seconds(found["billed_s"])),
        ("cost so far", "" if found["usd"] is None else format_usd(found["usd"])),
        ("bucket", found["bucket"] or ""),
        ("failure", found["failure"] or ""),
    ]
    return [(label, text) for label, text in lines if text]
