"""The results of reading one log, as values."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.diagnose.signatures import Match, Signature
from prime_train.diagnose.timestamps import Clock, Stamp
from prime_train.diagnose.tracebacks import Raised


class WriteWindow(NamedTuple):
    """The period in which a piece of a log was written, in seconds since 1970, by the log's reader."""

    since_s: float  # -inf where the reader started later
    until_s: float


class Hit(NamedTuple):
    """A line or a traceback that may be a cause. `match` is None where no signature matches."""

    at: int  # line number, from 1
    text: str
    stamp: Stamp | None
    incident: int  # the same for all hits of one traceback or line
    weak: bool
    match: Match | None
    chain: tuple[Raised, ...]  # the traceback up to this line
    done_before: int  # the progress that the log showed before it
    written: WriteWindow | None = None

    @property
    def signature(self) -> Signature | None:
        return self.match.signature if self.match else None


class Scan(NamedTuple):
    """The hits of one log, and its times."""

    name: str
    lines: int
    hits: tuple[Hit, ...]  # in the order of the lines
    done: int  # progress at its end; counted only as far as a hit needs it
    clock: Clock
    first_stamp: Stamp | None
    last_stamp: Stamp | None
    changed_s: float | None
    received: tuple[Stamp, float] | None = None  # the time in a line, and when the line was received
    skipped: int = 0  # lines with a word of a failure that were not scanned, because there were too many at once
