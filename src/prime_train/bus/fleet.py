"""What a controller knows of all machines: folds the messages of agents into documents. No I/O, no clock.

`fleet_store.py` keeps the documents in the keys of the bus. A document is plain JSON, because the page shows it and a
key stores it. It drops what is old, which the event files of the machine keep. Events count once: a document has the
position up to which it has the events of each writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prime_train.bus.base import BusMessage
from prime_train.bus.spool import is_known, read_batch, read_positions, with_position
from prime_train.events import (
    AlarmRaised,
    AttemptEnded,
    CheckpointDeleted,
    CheckpointSaved,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    TrainerStarted,
)

UNKNOWN_S = 10.0
LOST_S = 60.0
FAILURES_KEPT = 50  # of one job
_MOST_CHARACTERS = 300  # of a text: a document fits into one key
CHECKPOINTS_KEPT = 100
_MOST_RANKS = 1024
Document = Mapping[str, Any]
Liveness = Literal["live", "unknown", "lost", "ended", "failed"]
EMPTY: Document = {"state": "", "beat": {}, "failures": [], "checkpoints": [], "ranks": {}, "sent": {}, "decided": {}}
_FAILURES = ("failed", "died")
_ENDS = ("finished", "stopped", *_FAILURES)


def fold_message(document: Document, message: BusMessage, now_s: float) -> Document:
    """The document of a job on a machine after a message from its agent. What is no such message changes nothing."""
    _, job, _, machine, kind = message.subject.split(".")
    named = {**EMPTY, **document, "job": job, "machine": machine}
    match kind:
        case "hb":
            return {**named, "beat": _read_beat(message.body), "heard_s": now_s}
        case "ev":
            return {**_fold_batch(named, message.body), "heard_s": now_s}
    return document


def key_of(subject: str) -> str | None:
    """The key of the document that a subject changes; None for other subjects."""
    words = subject.split(".")
    is_agent = len(words) == 5 and words[0] == "pt" and words[2] == "r" and words[4] in ("hb", "ev")
    return f"{words[1]}.{words[3]}" if is_agent else None


def judge_silence(document: Document, listening_s: float, now_s: float) -> Liveness:
    """Whether a machine is alive. Silence proves no failure: only an end that its agent saw is one.

    `listening_s`: since when the controller hears. While it did not listen, silence means nothing.
    """
    # The last heartbeat may be lost, and so may an event wait in its spool: one of both is enough.
    for state in (document.get("state"), document.get("beat", {}).get("state")):
        if state in _ENDS:
            return "failed" if state in _FAILURES else "ended"
    heard_s = document.get("heard_s")
    silent_s = now_s - max(heard_s if isinstance(heard_s, int | float) else 0.0, listening_s)
    # A clock that was set back makes the silence negative, and a machine that was just heard is alive.
    if silent_s < UNKNOWN_S:
        return "live"
    return "unknown" if silent_s < LOST_S else "lost"


def _read_beat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a heartbeat that have their types; an agent of another version may lack some."""
    kinds = {"state": str, "attempt": int, "step": int, "progress_s": int | float | None, "exit_code": int | None}
    found = {name: body[name] for name, kind in kinds.items() if name in body and isinstance(body[name], kind)}
    return found | ({"state": found["state"][:64]} if "state" in found else {})


def _fold_batch(document: Document, body: Mapping[str, Any]) -> Document:
    records, damaged = read_batch(body)
    if damaged:
        document = {**document, "damaged": document.get("damaged", 0) + damaged}
    positions = read_positions(document["sent"])
    for record in records:
        if is_known(positions, record):
            continue  # it was sent again
        gap = record.seq - positions.get(record.writer, {}).get(record.life, record.seq - 1) - 1
        if gap > 0:  # a line of the file that is no event; or an event that never arrived
            document = {**document, "gaps": document.get("gaps", 0) + gap}
        positions = with_position(positions, record)
        document = fold_event(document, record)
    return {**document, "sent": positions}


def fold_event(document: Document, record: Record) -> Document:
    """The document after one event."""
    match record.event:
        case RunOpened(run=run, max_steps=max_steps):
            opened = {"run": run[:_MOST_CHARACTERS], "max_steps": max_steps, "state": "starting", "exit_code": None}
            return {**document, **opened, "beat": {}}  # that of the agent before may be the end of the run
        case LaunchAsked(attempt=attempt, resume_step=step):
            return {**document, "state": "starting", "attempt": attempt, "resume_step": step, "ranks": {}}
        case TrainerStarted(rank=rank, device=device, world_size=world_size) if rank < _MOST_RANKS:
            ranks = {**document["ranks"], str(rank): device[:16]}
            return {**document, "ranks": ranks, "world_size": world_size}
        case Phase(name=name):
            return {**document, "state": name[:64]}
        case Progress(step=step, loss=loss, tokens_per_s=tokens_per_s, reward=reward):
            # Loss may be NaN, which no JSON has.
            numbers = {"loss": _finite(loss), "tokens_per_s": _finite(tokens_per_s), "reward": _finite(reward)}
            return {**document, "state": "train", "step": step, "progress_s": record.time_s, **numbers}
        case CheckpointSaved(step=step, size_bytes=size):
            kept = [one for one in document["checkpoints"] if one["step"] != step]
            saved = {"step": step, "size_bytes": size, "saved_s": record.time_s}
            return {**document, "checkpoints": [*kept, saved][-CHECKPOINTS_KEPT:]}
        case CheckpointDeleted(step=step):
            return {**document, "checkpoints": [one for one in document["checkpoints"] if one["step"] != step]}
        case AttemptEnded(outcome="failed") as event:
            names = ("cause_class", "what", "why", "fix", "where")
            texts = {name: getattr(event, name)[:_MOST_CHARACTERS] for name in names}
            failure = {"attempt": event.attempt, "returncode": event.returncode, "ended_s": record.time_s, **texts}
            failures = [*document["failures"], failure][-FAILURES_KEPT:]
            return {**document, "failures": failures, "state": "restarting"}
        case AlarmRaised(name=name, what=what):
            alarm = {"name": name[:100], "what": what[:_MOST_CHARACTERS], "raised_s": record.time_s}
            return {**document, "alarm": alarm}
        case RunClosed(state=state, exit_code=code):
            return {**document, "state": state, "exit_code": code}
    return document


def _finite(value: float | None) -> float | None:
    return value if value is not None and value - value == 0.0 else None
