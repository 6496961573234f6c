"""Makes the document of a poll of the monitor, and renders it as lines and as the summary of a workflow's job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prime_train.away.monitor.poll import PollResult
from prime_train.views.text import plain, table


def as_json(name: str, result: PollResult) -> dict[str, Any]:
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


def as_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line of the document."""
    step = "" if document["step"] is None else f" at step {document['step']:,}"
    why = f": {document['verdict_why']}" if document["verdict_why"] else ""
    lines = [
        ("run", f"{document['verdict']}{step}{why}"),
        ("jobs", _jobs(document["jobs"])),
        ("action", f"{document['action']}: {document['why']}"),
        ("outcome", document["outcome"]),
        ("fix", document["fix"]),
        ("issue", None if document["issue"] is None else f"#{document['issue']}"),
    ]
    return [(label, text) for label, text in lines if text]


def as_summary(document: Mapping[str, Any]) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY. Text from outside is shown as code."""
    rows = [(label, f"`{plain(text).replace('`', chr(39))}`") for label, text in as_lines(document)]
    return f"## prime-train monitor: {plain(document['run'])}\n\n{table(('', ''), rows)}\n"


def _jobs(jobs: Sequence[Mapping[str, Any]] | None) -> str:
    if jobs is None:
        return "the queue cannot be read"
    shown = [f"{job['id']} {job['state']}, {job['recoveries']} recoveries" for job in jobs[-3:]]
    return "; ".join(shown) or "none"
