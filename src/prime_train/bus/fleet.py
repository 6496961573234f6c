"""What a controller knows of all machines: folds the messages of agents into documents. No I/O, no clock.

`fleet_store.py` keeps the documents in the keys of the bus. A document is plain JSON, because the page shows it and a
key stores it. It drops what is old, which the event files of the machine keep. Events count once: a document has the
position up to which it has the events of each writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prime_train.bus.base import BusMessage
from prime_train.bus.fleet_beats import read_beat, read_more
from prime_train.bus.fleet_events import Describe, Document, fold_event, keep_quiet
from prime_train.bus.spool import is_known, read_batch, read_positions, with_position

UNKNOWN_S = 10.0
LOST_S = 60.0
_MOST_DECISIONS = 50
Liveness = Literal["live", "unknown", "lost", "ended", "failed"]
EMPTY: Document = {
    "state": "",
    "beat": {},
    "failures": [],
    "checkpoints": [],
    "ranks": {},
    "entries": [],
    "marks": [],
    "settings": [],
    "curve": {},
    "held_out": {},
    "rate": {},
    "attempts": [],
    "left_out": [],
    "kept": {},
    "traces": {},
    "sent": {},
    "decided": {},
}
_FAILURES = ("failed", "died")
_ENDS = ("finished", "stopped", *_FAILURES)


def fold_message(document: Document, message: BusMessage, now_s: float, describe: Describe = keep_quiet) -> Document:
    """The document of a job on a machine after a message from its agent. What is no such message changes nothing.

    `describe`: the line that an event has among the entries; "" for one that is not listed.
    """
    _, job, _, machine, kind = message.subject.split(".")
    named = {**EMPTY, **document, "job": job, "machine": machine}
    match kind:
        case "hb":
            return {**named, **read_more(named, message.body), "beat": read_beat(message.body), "heard_s": now_s}
        case "ev":
            return {**_fold_batch(named, message.body, describe), "heard_s": now_s}
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


def decide(document: Document, decision: Mapping[str, Any]) -> Document:
    """The document with a command that the controller gave. It replaces the same one, else it is the latest."""
    before = document["decided"].get("commands")
    others = [one for one in before if one["id"] != decision["id"]] if isinstance(before, list) else []
    commands = [*others, dict(decision)][-_MOST_DECISIONS:]
    return {**document, "decided": {**document["decided"], "commands": commands}}


def _fold_batch(document: Document, body: Mapping[str, Any], describe: Describe) -> Document:
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
        document = fold_event(document, record, describe)
    return {**document, "sent": positions}
