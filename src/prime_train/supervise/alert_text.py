"""Says which events are worth an alert, and what it tells: where the run stands, what, why, fix, how to go on. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from prime_train.events import AlarmRaised, AttemptEnded, Event, GpuLeftOut, RunClosed
from prime_train.supervise.state import State

_PARTS = ("what", "why", "fix", "where")


class Told(NamedTuple):
    """An alert: what it is about, by which the same one is known again, and its document."""

    about: str
    document: dict[str, Any]
    is_end: bool = False  # of the run: it is told whatever came before


def alert(event: Event, state: State) -> Told | None:
    """What to tell of an event, as the state is after it; None for one that nobody waits for."""
    match event:
        case AlarmRaised(answer=answer) as alarm if answer != "note":
            about = ": ".join(part for part in (alarm.watch, alarm.name, alarm.subject) if part)
            named = {"watch": alarm.watch, "name": alarm.name, "subject": alarm.subject, "answer": answer}
            return _told(about, event, state, "alarm", named)
        case AttemptEnded(outcome="failed", attempt=attempt, cause_class=cause_class, cause_id=cause_id):
            ended: dict[str, Any] = {"class": cause_class, "id": cause_id, "newest_checkpoint": event.newest_complete}
            return _told(f"attempt {attempt} failed", event, state, "attempt_failed", ended)
        case GpuLeftOut(gpu=gpu, reason=reason):
            parts = {"what": f"{gpu} is left out where enough others remain", "why": reason, "fix": "", "where": gpu}
            return _told(f"{gpu} is left out", event, state, "gpu_left_out", parts)
        case RunClosed(state=end, reason=reason, exit_code=exit_code):
            parts = {"what": f"the run has {end}", "why": reason, "fix": "", "where": ""}
            told = _told(f"run {end}", event, state, f"run_{end}", parts | {"exit_code": exit_code})
            return told._replace(is_end=True)
        case _:
            return None


def _told(about: str, event: Event, state: State, kind: str, more: dict[str, Any]) -> Told:
    parts = {name: getattr(event, name, "") for name in _PARTS}
    document = {
        "kind": kind,
        "run": state.run,
        "step": state.step,
        "max_steps": state.max_steps,
        "attempt": state.attempt_number,
        **parts,
        **more,
        "commands": list(_commands(state)),
    }
    return Told(about, document | {"text": _text(about, document, state.stands_at)})


def _commands(state: State) -> tuple[str, ...]:
    """How to look further, and where it ended how to go on."""
    name = state.run
    look = (f"prime-train status {name}", f"prime-train diagnose {name}", f"prime-train logs {name}")
    return (*look, f"prime-train report {name}") if state.closed else (*look, f"prime-train stop {name}")


def _text(about: str, document: dict[str, Any], stands_at: str) -> str:
    """The document in a few lines, for channels that show nothing else."""
    head = f"{document['run'] or 'run'}, {stands_at}: {about}"
    return "\n".join((head, *(f"{name}: {document[name]}" for name in _PARTS if document[name])))
