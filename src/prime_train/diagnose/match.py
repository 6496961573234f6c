"""Reads one log as it comes, in pieces of bytes, and notes what its lines match. Decides nothing; opens no file."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

from prime_train.diagnose.again import Again
from prime_train.diagnose.clean import ANSI, Line, clean, unwrapped
from prime_train.diagnose.progress import ENOUGH, progress
from prime_train.diagnose.scans import Heard, Hit, Scan
from prime_train.diagnose.screen import is_error
from prime_train.diagnose.signatures import Catalogue, Match, catalogue
from prime_train.diagnose.times import Clock, Stamp
from prime_train.diagnose.tracebacks import HEADER, Builder, exception_alone

_HEAD_BYTES, _TAIL_BYTES = 8192, 4096  # what is looked at of a long line
_LONGEST_REST = 64 * 1024
_LONGEST_TEXT = 2000
_LOOK_BACK = 60  # lines, for the time of a line that has none
_FIRST_HITS, _LAST_HITS = 200, 50  # of one kind that are kept
_HURRIED_OF_A_KIND = 5
_SILENT_LINES = 5000  # of all writers, after which a traceback that broke off is over
_TRACEBACK = HEADER.lower()
_INDENTED = (b"  ", b"\t")  # such a line begins with no time
# Advice in a message is no symptom: "this can cause ... Too many open files".
_ADVICE = re.compile(
    r"\b(?:can|could|may|might) (?:also )?(?:be )?(?:cause|lead|result)|\bif you (?:see|get|encounter)\b", re.IGNORECASE
)
_IGNORED = "Exception ignored in"  # Python's own words for an error on the way out
# What is searched for is ASCII, and where the text is not the regex engine takes a thousand times as long: 26 s for
# 3 MB of progress bars.
_ASCII = bytes(range(128)) + b"?" * 128


class Scanner:
    """Follows one log. `feed` it bytes as they come, cut anywhere; `finish` it once."""

    def __init__(self, name: str, changed_s: float | None = None, known: Catalogue | None = None) -> None:
        self._name, self._changed_s = name, changed_s
        self._known = known or catalogue()
        self._clock = Clock(changed_s)
        self._rest = b""
        self._count = 0
        self._first: dict[str, list[Hit]] = defaultdict(list)
        self._later: dict[str, deque[Hit]] = defaultdict(lambda: deque(maxlen=_LAST_HITS))
        self._open: dict[str, Builder] = {}  # the tracebacks that are not over, by who writes them
        self._raised: dict[int, Hit] = {}  # and the first exception of each
        self._incident = 0
        self._done, self._done_at_last_hit = 0, -ENOUGH
        self._first_stamp: Stamp | None = None
        self._stamp: Stamp | None = None
        self._lines: list[bytes] = []  # of the block at hand
        self._timed = 0  # up to which of them the time was looked for
        self._index = 0
        self._lowered: list[str] = []  # the same lines in lower case, where any of them is looked at
        self._again, self._again_until = Again(), 0
        self._looks_left: int | None = None
        self._heard: Heard | None = None
        self._heard_stamp: tuple[Stamp, float] | None = None
        self._hurried: Counter[tuple[bool, ...]] = Counter()
        self._skipped = 0

    def feed(self, data: bytes, most_looks: int | None = None, heard: Heard | None = None) -> None:
        """Take the next bytes of the log.

        `most_looks`: lines to be looked at closely; of the rest a few of each kind are, the others counted as skipped.
        None for all of them. Lines that say again what was just said count for nothing. `heard`: when it was written.
        """
        self._looks_left, self._heard = most_looks, heard
        self._hurried.clear()
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > _LONGEST_REST:
            self._rest = _cut(self._rest)
        if end:
            self._block(data[:end])

    def finish(self) -> Scan:
        """Everything that was found. The last line needs no newline."""
        if self._rest:
            self._block(self._rest + b"\n")
            self._rest = b""
        self._close_all()
        return self.so_far()

    def so_far(self, changed_s: float | None = None) -> Scan:
        """What was found in the lines that have ended. More may be fed. `changed_s`: as of this moment."""
        if changed_s is not None:
            self._changed_s, self._clock = changed_s, self._clock.changed(changed_s)
        hits = [hit for hits in (*self._first.values(), *self._later.values()) for hit in hits]
        hits += (
            self._raised[builder.incident]._replace(chain=builder.chain)
            for builder in self._open.values()
            if builder.incident in self._raised
        )
        hits.sort(key=lambda hit: (hit.at, hit.incident))
        return Scan(
            self._name, self._count, tuple(hits), self._done, self._clock,
            self._first_stamp, self._stamp, self._changed_s, self._heard_stamp, self._skipped,
        )  # fmt: skip

    @property
    def skipped(self) -> int:
        """Lines that were not looked at, because there were too many at once."""
        return self._skipped

    def noticed(self) -> Iterator[Hit]:
        """The first hit of each kind that explains a slow run, once it came often enough."""
        for hits in self._first.values():
            match = hits[0].match if hits else None
            if match is not None and match.signature.notice and len(hits) >= match.signature.repeats:
                yield hits[0]

    def _block(self, block: bytes) -> None:
        if b"\x1b" in block:
            block = ANSI.sub(b"", block)
        before = self._stamp
        self._lines, self._timed = block.split(b"\n"), 0
        self._lines.pop()
        if self._first_stamp is None:
            self._first_stamp = self._earliest()
        lowered = block.lower().translate(_ASCII).decode("ascii")  # a byte stays a character
        if self._open or self._waits or self._known.is_loud(lowered):
            self._lowered, self._again_until = lowered.split("\n"), 0
            for index, line in enumerate(self._lowered[: len(self._lines)]):
                self._index = index
                self._line(line)
            self._close_broken()
        self._index = len(self._lines)
        if self._time_before() is not before and self._stamp is not None and self._heard is not None:
            self._heard_stamp = (self._stamp, self._heard.until_s)
        self._count += len(self._lines)

    @property
    def _waits(self) -> bool:
        """Whether there is a hit after which no work was seen yet."""
        return self._done - self._done_at_last_hit < ENOUGH

    def _line(self, lowered: str) -> None:
        if self._waits:
            self._done += progress(lowered)
        if not (self._open or self._known.is_loud(lowered)) or self._is_told(lowered):
            return
        if not self._has_time(lowered):
            self._skipped += 1
            return
        raw = self._lines[self._index]
        if len(raw) > _HEAD_BYTES + _TAIL_BYTES:
            raw = _cut(raw)
        text = raw.decode("utf-8", "replace")
        if not (self._open or is_error(lowered) or self._known.may_match(text, text.lower())):
            return
        for part in text.split("\r"):
            for line in unwrapped(part):
                self._look(line)

    def _has_time(self, lowered: str) -> bool:
        """Whether the line is to be looked at closely. In a hurry a few of each kind are all the same, whatever came
        before: another failure may stand amid the flood."""
        if self._looks_left is None:
            return True
        if self._looks_left:
            self._looks_left -= 1
            return True
        kind = self._known.families(lowered)
        self._hurried[kind] += 1
        return self._hurried[kind] <= _HURRIED_OF_A_KIND

    def _is_told(self, lowered: str) -> bool:
        """Whether the line only repeats what was looked at often enough."""
        if self._index < self._again_until:
            return True
        if self._open and not (_TRACEBACK in lowered and all(item.has_ended for item in self._open.values())):
            return False
        at = self._count + self._index + 1
        if _TRACEBACK in lowered:
            size = 0 if self._follows_ignored() else self._again.traceback(self._lowered, self._index, at, self._done)
            self._again_until = self._index + size
            if size:
                self._close_all()
            return size > 0
        return self._again.line(lowered, at, self._done)

    def _close_broken(self) -> None:
        """A writer that was killed amid a traceback says no more, and while one is open every line is looked at."""
        here = self._count + len(self._lines)
        for stream in [name for name, builder in self._open.items() if here - builder.last_at > _SILENT_LINES]:
            self._close(self._open.pop(stream))

    def _look(self, line: Line) -> None:
        at = self._count + self._index + 1
        builder = self._open.get(line.stream)
        if builder is not None:
            was_in_frames = builder.in_frames
            taken = builder.takes(line.text, at)
            if taken == "mine":
                if not builder.in_frames:
                    self._match(line, builder.said(line.text, was_in_frames), builder)
                return
            if taken == "over":
                self._close(self._open.pop(line.stream))
        if HEADER in line.text and not line.text.startswith(_IGNORED):
            self._incident += 1
            if not self._follows_ignored():
                self._open[line.stream] = Builder(self._incident, at, line.level in ("debug", "info", "warning"))
            return
        self._match(line, line.text, None)

    def _follows_ignored(self) -> bool:
        return self._index > 0 and _IGNORED.encode() in self._lines[self._index - 1]

    def _match(self, line: Line, text: str, builder: Builder | None) -> None:
        """Note every signature that the text matches; where none does and it looks like an error, note that."""
        if builder is None:
            self._incident += 1
        elif builder.incident not in self._raised:
            self._raised[builder.incident] = self._hit(line, text, builder, None, builder.is_calm)
            self._done_at_last_hit = self._done
        found = False
        for match in self._known.matches(text[: _HEAD_BYTES + _TAIL_BYTES]):
            signature = match.signature
            found = True
            if line.level in ("debug", "info") and signature.level != "any":
                continue
            if _ADVICE.search(text, 0, match.start):
                continue
            weak = signature.weak or (line.level == "warning" and signature.level != "any")
            self._note(line, text, builder, match, weak)
        if not found and builder is None and (line.level == "error" or (not line.level and exception_alone(text))):
            self._note(line, text, None, None, True)

    def _close_all(self) -> None:
        for builder in self._open.values():
            self._close(builder)
        self._open.clear()

    def _close(self, builder: Builder) -> None:
        """A traceback is over: note it, that the one that no signature knows is told as well."""
        begun = self._raised.pop(builder.incident, None)
        if begun is not None:
            self._kept("traceback").append(begun._replace(chain=builder.chain))

    def _note(self, line: Line, text: str, builder: Builder | None, match: Match | None, weak: bool) -> None:
        self._keep(self._hit(line, text, builder, match, weak), match.signature.id if match else "error")

    def _hit(self, line: Line, text: str, builder: Builder | None, match: Match | None, weak: bool) -> Hit:
        stamp = self._time(line)
        self._first_stamp = self._first_stamp or stamp
        return Hit(
            at=self._count + self._index + 1,
            text=text.strip()[:_LONGEST_TEXT],
            stamp=stamp,
            incident=builder.incident if builder else self._incident,
            weak=weak,
            match=match,
            chain=builder.chain if builder else (),
            done_before=self._done,
            heard=self._heard,
        )

    def _keep(self, hit: Hit, kind: str) -> None:
        self._kept(kind).append(hit)
        if not (hit.match and hit.match.signature.notice):
            self._done_at_last_hit = self._done

    def _kept(self, kind: str) -> list[Hit] | deque[Hit]:
        first = self._first[kind]
        return first if len(first) < _FIRST_HITS else self._later[kind]

    def _time_before(self) -> Stamp | None:
        """The time of the nearest line above that has one. A line is looked at once."""
        for raw in self._lines[max(self._timed, self._index - _LOOK_BACK) : self._index][::-1]:
            if raw.startswith(_INDENTED):
                continue
            stamp = clean(raw[:400].decode("utf-8", "replace")).stamp
            if stamp is not None:
                self._stamp = self._clock.seen(stamp)
                break
        self._timed = max(self._timed, self._index)
        return self._stamp

    def _time(self, line: Line) -> Stamp | None:
        if line.stamp is None:
            return self._time_before()
        self._stamp, self._timed = self._clock.seen(line.stamp), self._index + 1
        return self._stamp

    def _earliest(self) -> Stamp | None:
        heads = (clean(raw[:400].decode("utf-8", "replace")).stamp for raw in self._lines[:_LOOK_BACK])
        return next((self._clock.seen(stamp) for stamp in heads if stamp is not None), None)


def scan(chunks: Iterable[bytes], name: str, changed_s: float | None = None, known: Catalogue | None = None) -> Scan:
    """What a log holds. `changed_s`: when it was last written (seconds since 1970), where that is known."""
    scanner = Scanner(name, changed_s, known)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.finish()


def _cut(line: bytes) -> bytes:
    return line[:_HEAD_BYTES] + b" ... " + line[-_TAIL_BYTES:]
