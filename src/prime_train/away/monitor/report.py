"""Shows a poll of the monitor: as lines, as JSON, and as the summary of a workflow's job. Pure."""

from __future__ import annotations

from typing import Any

from prime_train.away.monitor.poll import Result
from prime_train.views.text import plain, table


def as_json(name: str, result: Result) -> dict[str, Any]:
    """The document of `monitor --json`."""
    reading, decision = result.reading, result.decision
    return {
        "version": 1,
        "run": name,
        "action": decision.action,
        "why": decision.why,
        "fix": decision.fix or None,
        "outcome": result.outcome or None,
        "issue": result.issue,
        "verdict": reading.verdict,
        "verdict_why": reading.why or None,
        "resumable": reading.resumable,
        "step": reading.step,
        "jobs": None if reading.jobs is None else [job._asdict() for job in reading.jobs],
    }


def as_lines(result: Result) -> list[tuple[str, str]]:
    """Label and text of each line."""
    reading, decision = result.reading, result.decision
    step = "" if reading.step is None else f" at step {reading.step:,}"
    lines = [
        ("run", f"{reading.verdict}{step}" + (f": {reading.why}" if reading.why else "")),
        ("jobs", _jobs(result)),
        ("action", f"{decision.action}: {decision.why}"),
    ]
    if result.outcome:
        lines.append(("outcome", result.outcome))
    if decision.fix:
        lines.append(("fix", decision.fix))
    if result.issue is not None:
        lines.append(("issue", f"#{result.issue}"))
    return lines


def as_summary(name: str, result: Result) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY. Text from outside is shown as code."""
    rows = [(label, f"`{plain(text).replace('`', chr(39))}`") for label, text in as_lines(result)]
    return f"## prime-train monitor: {plain(name)}\n\n{table(('', ''), rows)}\n"


def _jobs(result: Result) -> str:
    jobs = result.reading.jobs
    if jobs is None:
        return "the queue cannot be read"
    shown = [f"{job.id} {job.state}, {job.recoveries} recoveries" for job in jobs[-3:]]
    return "; ".join(shown) or "none"
