"""What a scan of one log found: its hits, its end and its times. Judges nothing."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from prime_train.diagnose.signatures import Match, Signature
from prime_train.diagnose.timestamps import Stamp, StampClock
from prime_train.diagnose.tracebacks import Raised

_FIRST_HITS, _LAST_HITS = 200, 50  # kept of each kind


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
    is_text: bool = False  # on a warning, or on a line without a speaker, which only its signature accepts
    attempt: int = 1  # of several in one file
    calm_before: int = 0  # lines at info level before it, counted as far as a hit needs them
    by_level: bool = False  # only the level of its line calls it an error
    stream: str = ""  # the writer of the line, such as "rank3"; empty where the log does not name it
    is_logged: bool = False  # a logger wrote the traceback, so its process caught it

    @property
    def signature(self) -> Signature | None:
        return self.match.signature if self.match else None


class LogEnd(NamedTuple):
    """The last line of a log. `is_good`: the lines before it report that the work was completed."""

    line: int
    text: str
    is_good: bool


class Scan(NamedTuple):
    """The hits of one log, and its times."""

    name: str
    lines: int
    hits: tuple[Hit, ...]  # in the order of the lines
    done: int  # progress at its end; counted only as far as a hit needs it
    clock: StampClock
    first_stamp: Stamp | None
    last_stamp: Stamp | None
    changed_s: float | None
    received: tuple[Stamp, float] | None = None  # the time in a line, and when the line was received
    skipped: int = 0  # lines with a word of a failure that were not scanned, because there were too many at once
    end: LogEnd = LogEnd(0, "", False)
    attempt: int = 1  # the last one in the file
    calm: int = 0  # lines at info level, counted as far as a hit needs them
    refusals: tuple[int, ...] = ()  # lines at which a server refused a request after a hit
    level_means_nothing: bool = False  # a collector gives each line of stderr the level "error"


class KeptHits:
    """The first and the last hits of each kind in one log, so that a flood of one kind takes no memory."""

    def __init__(self) -> None:
        self._first: dict[str, list[Hit]] = defaultdict(list)
        self._last: dict[str, deque[Hit]] = defaultdict(lambda: deque(maxlen=_LAST_HITS))

    def __iter__(self) -> Iterator[Hit]:
        for hits in (*self._first.values(), *self._last.values()):
            yield from hits

    def keep(self, kind: str, hit: Hit) -> None:
        first = self._first[kind]
        (first if len(first) < _FIRST_HITS else self._last[kind]).append(hit)

    def notices(self) -> Iterator[Hit]:
        """The first hit of each notice, once it was found often enough."""
        for hits in self._first.values():
            known = hits[0].signature
            if known is not None and known.notice and len(hits) >= known.repeats:
                yield hits[0]
