"""Builds the alerts for important events: the state of the run, what, why, fix, and the next commands. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from prime_train.events import AlarmRaised, AttemptEnded, Event, GpuLeftOut, RunClosed
from prime_train.supervise.state import State

_PARTS = ("what", "why", "fix", "where")


class Alert(NamedTuple):
    """`about` is the key by which a repeated alert is recognised."""

    about: str
    document: dict[str, Any]
    is_end: bool = False  # the end of the run, which is never held back


def build_alert(event: Event, state: State) -> Alert | None:
    """The alert for an event, with the state after it; None for an event that needs no alert."""
    match event:
        case AlarmRaised(answer=answer) as alarm if answer != "note":
            about = ": ".join(part for part in (alarm.watch, alarm.name, alarm.subject) if part)
            named = {"watch": alarm.watch, "name": alarm.name, "subject": alarm.subject, "answer": answer}
            return _build(about, event, state, "alarm", named)
        case AttemptEnded(outcome="failed", attempt=attempt, cause_class=cause_class, cause_id=cause_id):
            ended: dict[str, Any] = {"class": cause_class, "id": cause_id, "newest_checkpoint": event.newest_complete}
            return _build(f"attempt {attempt} failed", event, state, "attempt_failed", ended)
        case GpuLeftOut(gpu=gpu, reason=reason):
            parts = {"what": f"{gpu} is left out where enough others remain", "why": reason, "fix": "", "where": gpu}
            return _build(f"{gpu} is left out", event, state, "gpu_left_out", parts)
        case RunClosed(state=end, reason=reason, exit_code=exit_code):
            parts = {"what": f"the run has {end}", "why": reason, "fix": "", "where": ""}
            closing = _build(f"run {end}", event, state, f"run_{end}", parts | {"exit_code": exit_code})
            return closing._replace(is_end=True)
        case _:
            return None


def _build(about: str, event: Event, state: State, kind: str, more: dict[str, Any]) -> Alert:
    parts = {name: getattr(event, name, "") for name in _PARTS}
    document = {
        "kind": kind,
        "run": state.run,
        "step": state.step,
        "max_steps": state.max_steps,
        "attempt": state.attempt_number,
        **parts,
        **more,
        "commands": list(_list_commands(state)),
    }
    return Alert(about, document | {"text": _format_text(about, document, state.progress_text)})


def _list_commands(state: State) -> tuple[str, ...]:
    """Commands for a closer look, and for the report of an ended run."""
    name = state.run
    look = (f"prime-train status {name}", f"prime-train diagnose {name}", f"prime-train logs {name}")
    return (*look, f"prime-train report {name}") if state.closed else (*look, f"prime-train stop {name}")


def _format_text(about: str, document: dict[str, Any], progress_text: str) -> str:
    """The document as a few lines, for channels that show only text."""
    head = f"{document['run'] or 'run'}, {progress_text}: {about}"
    return "\n".join((head, *(f"{name}: {document[name]}" for name in _PARTS if document[name])))
