"""Scans one log, in pieces of bytes as it grows, and collects the lines that match. Decides nothing; opens no file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from prime_train.diagnose.aftermath import Aftermath
from prime_train.diagnose.encoding import Encoding
from prime_train.diagnose.hits import Hit, KeptHits, Scan, WriteWindow
from prime_train.diagnose.line_times import LineTimes
from prime_train.diagnose.log_end import START_LINES, TAIL_LINES, may_turn, read_end
from prime_train.diagnose.log_prefix import ANSI, LearnedPrefixes, LogLine, split_bars, unwrap
from prime_train.diagnose.prefilter import RepeatFilter, is_error
from prime_train.diagnose.signatures import Catalogue, Match, catalogue
from prime_train.diagnose.speakers import DEFAULT_SPEAKERS, classify
from prime_train.diagnose.tracebacks import HEADER, Builder, is_frame

_HEAD_BYTES, _TAIL_BYTES = 8192, 4096  # the parts of a long line that are scanned
_LONGEST_REST = 64 * 1024
_LONGEST_TEXT = 2000
_LIMITED_PER_KIND = 5  # lines of each kind that are scanned beyond `most_scans`
_BROKEN_LINES, _NARROWEST = 2, 40
_MANY_ERRORS = 5  # first lines at error level, and none at another: the level is that of the stream
_SILENT_LINES = 5000  # of other writers, after which an unfinished traceback is closed
_TRACEBACK = HEADER.lower()
# Advice in a message is not a symptom: "this can cause ... Too many open files".
_ADVICE = re.compile(
    r"\b(?:can|could|may|might) (?:also )?(?:be )?(?:cause|lead|result)|\bif you (?:see|get|encounter)\b", re.IGNORECASE
)
_IGNORED = "Exception ignored in"  # Python's message for an error at interpreter exit
# All words are ASCII, and on other text the regex engine is a thousand times slower: 26 s for 3 MB of progress bars.
_ASCII = bytes(range(128)) + b"?" * 128
_CALM_LEVELS = ("debug", "info", "warning")


class Scanner:
    """Scans one log. Call `feed` with its bytes, cut anywhere, and `finish` once at the end."""

    def __init__(self, name: str, changed_s: float | None = None, known: Catalogue | None = None) -> None:
        self._name = name
        self._known = known or catalogue()
        self._times = LineTimes(changed_s)
        self._rest = b""
        self._count = 0
        self._hits = KeptHits()
        self._open: dict[str, Builder] = {}  # unfinished tracebacks by writer
        self._raised: dict[int, Hit] = {}  # the first exception of each, by incident
        self._incident = 0
        self._after = Aftermath()
        self._lines: list[bytes] = []  # of the current block
        self._index = 0
        self._lowered: list[str] = []  # the same lines in lower case
        self._block_may_turn = False
        self._block_may_change = False  # whether a line of it may show anything after a failure
        self._repeats, self._repeated_until = RepeatFilter(), 0
        self._scans_left: int | None = None
        self._written: WriteWindow | None = None
        self._limited: Counter[tuple[bool, ...]] = Counter()
        self._prefixes = LearnedPrefixes()
        self._heading: Hit | None = None  # of the line before, if it ends with a colon
        self._width = 0  # of the terminal at which the lines of this block are broken; 0 if they are not
        self._levels: Counter[str] = Counter()  # of the first lines
        self._tail: list[bytes] = []
        self._encoding = Encoding()
        self.skipped = 0  # lines that were not scanned, because there were too many at once

    def feed(self, data: bytes, most_scans: int | None = None, written: WriteWindow | None = None) -> None:
        """Scan the next bytes of the log.

        `most_scans`: the number of lines to scan closely; beyond it a few of each kind are scanned and the others
        counted as skipped. None scans all. Repetitions do not count. `written`: when `data` was written.
        """
        self._scans_left, self._written = most_scans, written
        self._limited.clear()
        data = self._rest + self._encoding.decode(data)
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > _LONGEST_REST:
            self._rest = _cut(self._rest)
        if end:
            self._block(data[:end])

    def finish(self) -> Scan:
        """The final result. The last line needs no newline."""
        rest = self._rest + self._encoding.finish()
        self._rest = b""
        if rest:
            self._block(rest + b"\n")
        self._close_all()
        return self.so_far()

    def so_far(self, changed_s: float | None = None) -> Scan:
        """The result for the complete lines so far. `feed` may be called again. `changed_s`: the file's change time."""
        if changed_s is not None:
            self._times.clock = replace(self._times.clock, changed_s=changed_s)
        hits = list(self._hits)
        hits += (
            self._raised[builder.incident]._replace(chain=builder.chain)
            for builder in self._open.values()
            if builder.incident in self._raised
        )
        hits.sort(key=lambda hit: (hit.at, hit.incident))
        times = self._times
        end = read_end(self._tail, self._count, has_failed=any(not hit.is_text for hit in hits))
        return Scan(
            self._name, self._count, tuple(hits), self._after.done, times.clock,
            times.first, times.last, times.clock.changed_s, times.received, self.skipped,
            end, self._after.attempt, self._after.calm, tuple(self._after.refusals), self._level_means_nothing,
        )  # fmt: skip

    @property
    def _level_means_nothing(self) -> bool:
        """Whether all first lines are errors by their level: a collector gave it to all lines of stderr."""
        return self._levels["error"] >= _MANY_ERRORS and len(self._levels) == 1

    def find_notices(self) -> Iterator[Hit]:
        """The first hit of each notice, once it was found often enough."""
        return self._hits.notices()

    def _block(self, block: bytes) -> None:
        if b"\x1b" in block:
            block = ANSI.sub(b"", block)
        self._lines = block.split(b"\n")
        self._lines.pop()
        self._times.start_block(self._lines)
        lowered = block.lower().translate(_ASCII).decode("ascii")  # a byte stays a character
        if self._count < START_LINES:
            size = min(len(self._lines), START_LINES - self._count)
            for line, raw in zip(lowered.split("\n", size)[:size], self._lines[:size], strict=True):
                self._after.banners.read_start(line)
                if line.strip():
                    self._levels[unwrap(raw[:_HEAD_BYTES].decode("utf-8", "replace"))[0].level] += 1
        self._width = _find_width(self._lines) if self._encoding.is_utf_16 else 0
        if self._open or self._after.waits or self._known.may_hold_error(lowered):
            self._lowered, self._repeated_until = lowered.split("\n"), 0
            self._block_may_turn = may_turn(lowered)
            self._block_may_change = self._block_may_turn or self._after.banners.knows_first
            may_hold_error = self._known.may_hold_error
            for index, line in enumerate(self._lowered[: len(self._lines)]):
                holds = may_hold_error(line)
                if holds or self._open or self._after.waits:
                    self._index = index
                    self._line(line, holds)
            self._close_broken()
        self._index = len(self._lines)
        self._times.end_block(self._written)
        self._count += len(self._lines)
        self._tail = [*self._tail, *self._lines[-TAIL_LINES:]][-TAIL_LINES:]

    def _line(self, lowered: str, holds: bool) -> None:
        """Scan one line. `holds`: whether it may hold an error."""
        after = self._after
        if self._block_may_change and after.waits:
            at = self._count + self._index + 1
            if after.look(lowered, at, block_may_turn=self._block_may_turn):
                self._close_all()
                self._repeats = RepeatFilter()
        if self._heading is not None:
            heading, self._heading = self._heading, None
            self._continue(heading)
        if not (self._open or holds) or self._is_repeated(lowered):
            return
        if not self._may_scan(lowered):
            self.skipped += 1
            return
        raw = self._lines[self._index]
        if len(raw) > _HEAD_BYTES + _TAIL_BYTES:
            raw = _cut(raw)
        text = raw.decode("utf-8", "replace")
        if not (self._open or is_error(lowered) or self._known.may_match(text, text.lower())):
            return
        for part in split_bars(text):
            stream, part = self._prefixes.remove(part)
            for line in unwrap(part):
                # A prefix may stand before a level and behind it: "ERROR 2026-11-21 10:00:00 [job: trainer] ...".
                inner, rest = self._prefixes.remove(line.text)
                names = " ".join(filter(None, (stream, inner, line.stream)))
                self._scan(line._replace(stream=names, text=rest) if names else line, part)

    def _may_scan(self, lowered: str) -> bool:
        """Whether the line may be scanned closely.

        Beyond the limit a few lines of each kind are still scanned, because another failure may be hidden in the flood.
        """
        if self._scans_left is None:
            return True
        if self._scans_left:
            self._scans_left -= 1
            return True
        kind = self._known.families(lowered)
        self._limited[kind] += 1
        return self._limited[kind] <= _LIMITED_PER_KIND

    def _is_repeated(self, lowered: str) -> bool:
        """Whether the line only repeats lines that were scanned often enough."""
        if self._index < self._repeated_until:
            return True
        if self._open and not (_TRACEBACK in lowered and all(item.has_ended for item in self._open.values())):
            return False
        at = self._count + self._index + 1
        if _TRACEBACK not in lowered:
            return self._repeats.skips_line(lowered, at, self._after.done)
        if self._follows_ignored():
            return False
        size = self._repeats.count_skipped(self._lowered, self._index, at, self._after.done)
        self._repeated_until = self._index + size
        if size:
            self._close_all()
        return size > 0

    def _close_broken(self) -> None:
        """Close tracebacks whose writer was killed, because an open traceback makes every line be scanned."""
        here = self._count + len(self._lines)
        for stream in [name for name, builder in self._open.items() if here - builder.last_at > _SILENT_LINES]:
            self._close(self._open.pop(stream))

    def _scan(self, line: LogLine, raw: str) -> None:
        at = self._count + self._index + 1
        builder = self._open.get(line.stream)
        if builder is not None and builder.has_ended and self._is_broken_here(builder):
            first = self._raised[builder.incident]
            self._match(line, builder.chain[-1].text + line.text, builder, first)
            return
        if builder is not None:
            was_in_frames = builder.in_frames
            placement = builder.add(line.text, at)
            if placement == "own":
                if not builder.in_frames:
                    self._match(line, builder.text_to_match(line.text, was_in_frames), builder)
                return
            if placement == "over":
                self._close(self._open.pop(line.stream))
        if HEADER in line.text and not line.text.startswith(_IGNORED):
            self._incident += 1
            self._open_traceback(line, raw, at)
            return
        if builder is None and is_frame(line.text):  # the top of the traceback is cut off
            self._incident += 1
            self._open[line.stream] = Builder(self._incident, at, line.level in _CALM_LEVELS)
            self._open[line.stream].add(line.text, at)
            return
        self._match(line, line.text, None)

    def _is_broken_here(self, builder: Builder) -> bool:
        """Whether a terminal broke the line of the exception, so that this line is the rest of it."""
        above = self._index and len(self._lines[self._index - 1].rstrip(b"\r"))
        return bool(self._width) and above == self._width and builder.last_at == self._count + self._index

    def _open_traceback(self, line: LogLine, raw: str, at: int) -> None:
        """Start a traceback. An unknown text before its header may be the prefix of its other lines."""
        builder = Builder(
            self._incident,
            at,
            line.level in _CALM_LEVELS,
            is_ignored=self._follows_ignored(),
            is_logged=bool(line.level),
        )
        self._open[line.stream] = builder
        if not line.text.startswith(HEADER):
            stream = self._prefixes.learn(raw) or self._prefixes.learn(line.text)
            if stream:
                self._open[f"{stream} {line.stream}".strip()] = builder

    def _follows_ignored(self) -> bool:
        return self._index > 0 and _IGNORED.encode() in self._lines[self._index - 1]

    def _match(self, line: LogLine, text: str, builder: Builder | None, heading: Hit | None = None) -> None:
        """Keep a hit for every signature that matches, or one for an unknown error.

        `heading`: the hit of the line above, which ends with a colon and to which this one belongs.
        """
        if builder is not None and builder.is_ignored:
            return
        if builder is None:
            self._incident += heading is None
        elif builder.incident not in self._raised:
            self._raised[builder.incident] = self._hit(line, text, builder, None, builder.is_calm)
            self._after.keep_hit()
        speaker = classify(line, builder)
        matches = list(self._known.matches(text[: _HEAD_BYTES + _TAIL_BYTES]))
        heard = [match for match in matches if speaker in match.signature.speakers]
        for match in heard:
            if _ADVICE.search(text, 0, match.start):
                continue
            is_text = speaker not in DEFAULT_SPEAKERS and not match.signature.hears_all
            weak = match.signature.weak or is_text or (speaker == "warning" and not match.signature.hears_all)
            hit = self._hit(line, text, builder, match, weak)
            is_loose = is_text or (speaker == "warning" and builder is None and not match.signature.weak)
            if heading is not None:
                hit = hit._replace(at=heading.at, incident=heading.incident)
            self._keep(hit._replace(is_text=is_loose), match.signature.id)
        if not heard and builder is None and speaker in ("error", "exception"):
            self._keep_unknown(line, text, heading)

    def _keep_unknown(self, line: LogLine, text: str, heading: Hit | None) -> None:
        """Keep an error that no signature knows. One that ends with a colon is a heading: its words follow."""
        hit = self._hit(line, text, None, None, True)
        hit = hit._replace(by_level=line.level == "error" and not is_error(line.text.lower()))
        if heading is None:
            self._heading = hit if text.rstrip().endswith(":") else None
        else:
            hit = hit._replace(at=heading.at, incident=heading.incident)
        self._keep(hit, "error")

    def _continue(self, heading: Hit) -> None:
        """Match the line after a heading together with it, if no other message begins there."""
        if heading.at != self._count + self._index:
            return
        text = self._lines[self._index][:_HEAD_BYTES].decode("utf-8", "replace").rstrip("\r")
        line = unwrap(text)[0]
        if line.text.strip() and not line.level and line.stamp is None and HEADER not in line.text:
            self._match(line._replace(level="error"), f"{heading.text} {line.text.strip()}", None, heading)

    def _close_all(self) -> None:
        for builder in dict.fromkeys(self._open.values()):
            self._close(builder)
        self._open.clear()

    def _close(self, builder: Builder) -> None:
        """Keep a finished traceback even where no signature matches it."""
        first = self._raised.pop(builder.incident, None)
        if first is not None:
            self._hits.keep("traceback", first._replace(chain=builder.chain))

    def _hit(self, line: LogLine, text: str, builder: Builder | None, match: Match | None, weak: bool) -> Hit:
        return Hit(
            at=self._count + self._index + 1,
            text=text.strip()[:_LONGEST_TEXT],
            stamp=self._times.find(self._index, line.stamp),
            incident=builder.incident if builder else self._incident,
            weak=weak,
            match=match,
            chain=builder.chain if builder else (),
            done_before=self._after.done,
            written=self._written,
            attempt=self._after.attempt,
            calm_before=self._after.calm,
            stream=line.stream,
            is_logged=bool(line.level) if builder is None else builder.is_logged,
        )

    def _keep(self, hit: Hit, kind: str) -> None:
        self._hits.keep(kind, hit)
        if not (hit.signature and hit.signature.notice):
            self._after.keep_hit()


def scan(chunks: Iterable[bytes], name: str, changed_s: float | None = None, known: Catalogue | None = None) -> Scan:
    """The hits of a complete log. `changed_s`: when it was last written (seconds since 1970), where that is known."""
    scanner = Scanner(name, changed_s, known)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.finish()


def _find_width(lines: list[bytes]) -> int:
    """The width at which a terminal broke the lines: several are as long, and none is longer; else 0."""
    sizes = Counter(len(line.rstrip(b"\r")) for line in lines)
    width = max(sizes, default=0)
    return width if sizes[width] >= _BROKEN_LINES and width >= _NARROWEST else 0


def _cut(line: bytes) -> bytes:
    return line[:_HEAD_BYTES] + b" ... " + line[-_TAIL_BYTES:]
