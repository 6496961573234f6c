"""Chooses the events that a reader of a run wants to see, and finds its failures among them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.core.state import State
from prime_train.views.text import sanitize

Entry = dict[str, Any]  # an event as JSON: key, time_s, kind, text, attempt, step, details

FIRST_STEP = "first_step"  # the kind of the entry for the first progress of an attempt
FAILURES_KEPT = 200  # of a run
_LONGEST = 2000  # characters of a text in an entry
_MOST_ITEMS = 50  # of a list in an entry
# The numbers of these are drawn as curves, or there are too many of them.
_FREQUENT = (events.Phase, events.Sampled, events.CheckpointStarted, events.Evaluated, events.TasksEvaluated)


def make_entry(record: Record, state: State, seen_attempts: set[int]) -> Entry | None:
    """The entry of an event; None for one that is not shown.

    `state`: after the event. `seen_attempts`: attempts that have made a step; this one is added.
    """
    event = record.event
    attempt = getattr(event, "attempt", state.attempt_number)
    kind, text = event.kind, describe(event)
    if isinstance(event, events.Progress):
        if attempt in seen_attempts:
            return None
        seen_attempts.add(attempt)
        kind, text = FIRST_STEP, f"attempt {attempt} made its first step, {event.step:,}"
    elif not text or isinstance(event, _FREQUENT):
        return None
    return {
        "key": f"{record.writer}/{record.life}/{record.seq}",
        "time_s": record.time_s,
        "kind": kind,
        "text": shorten(text),
        "attempt": attempt,
        "step": getattr(event, "step", state.step),
        "details": {name: shorten(value) for name, value in asdict(event).items()},
    }


def shorten(value: Any) -> Any:
    """A value from a run as JSON: texts without control characters, texts and lists cut to a bounded length."""
    if isinstance(value, str):
        # A lone surrogate, as Python reads a byte that is not UTF-8, cannot be sent.
        text = sanitize(value).encode("utf-8", "replace").decode("utf-8")
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    if isinstance(value, dict):
        return {shorten(str(name)): shorten(inner) for name, inner in list(value.items())[:_MOST_ITEMS]}
    if isinstance(value, list | tuple):
        return [shorten(inner) for inner in value[:_MOST_ITEMS]]
    if isinstance(value, float) and value - value != 0.0:  # JSON has neither nan nor infinity
        return None
    return value


def find_failures(entries: Iterable[Entry]) -> list[Entry]:
    """The attempts that failed, oldest first, the latest FAILURES_KEPT.

    `recovered_s`: from the end of the attempt to the first step of a later one; None while there is none.
    """
    found: list[Entry] = []
    waiting: list[Entry] = []  # failures that no step followed yet
    evidence: dict[int, str] = {}
    for entry in entries:
        details = entry["details"]
        match entry["kind"]:
            case events.EvidenceKept.kind:
                evidence[entry["attempt"]] = details["folder"]
            case events.AttemptEnded.kind if details["outcome"] == "failed":
                names = ("what", "why", "fix", "where", "cause_class", "cause_id", "returncode", "newest_complete")
                failure = {name: details[name] for name in names}
                failure |= {name: entry[name] for name in ("attempt", "step", "time_s")}
                failure |= {"evidence": evidence.get(entry["attempt"]), "recovered_s": None}
                found.append(failure)
                waiting.append(failure)
            case kind if kind == FIRST_STEP:
                for failure in waiting:
                    failure["recovered_s"] = round(max(0.0, entry["time_s"] - failure["time_s"]), 1)
                waiting = []
    return found[-FAILURES_KEPT:]


def find_marks(entries: Sequence[Entry]) -> list[Entry]:
    """The steps at which a curve has a mark: where an attempt began, and where settings changed."""
    marks = []
    for entry in entries:
        details = entry["details"]
        if entry["kind"] == events.LaunchAsked.kind and entry["attempt"] > 1:
            marks.append({"step": details["resume_step"], "kind": "attempt", "text": f"attempt {entry['attempt']}"})
        elif entry["kind"] == "settings_applied":
            marks.append({"step": entry["step"], "kind": "settings", "text": f"settings {details.get('version')}"})
    return marks
