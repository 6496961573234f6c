"""What the reading of one log finds, as values. Reads and judges nothing."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.diagnose.signatures import Match
from prime_train.diagnose.times import Clock, Stamp
from prime_train.diagnose.tracebacks import Raised


class Heard(NamedTuple):
    """Between which moments, in seconds since 1970, a piece of a log was written, as its reader knows."""

    since_s: float  # -inf where it was not there to see it
    until_s: float


class Hit(NamedTuple):
    """A line, or a traceback, that may be a cause. `match` is None where no signature knows it."""

    at: int  # line number, from 1
    text: str
    stamp: Stamp | None
    incident: int  # hits of one traceback, or of one line, share it
    weak: bool
    match: Match | None
    chain: tuple[Raised, ...]  # the traceback up to here
    done_before: int  # how much progress the log had shown by then
    heard: Heard | None = None


class Scan(NamedTuple):
    """What one log holds."""

    name: str
    lines: int
    hits: tuple[Hit, ...]  # in the order of the lines
    done: int  # progress at its end; only as far as any hit needs it
    clock: Clock
    first_stamp: Stamp | None
    last_stamp: Stamp | None
    changed_s: float | None
    heard: tuple[Stamp, float] | None = None  # a time that a line told, and when that line came in
    skipped: int = 0  # lines with a word of a failure that were not looked at, because there were too many at once
