"""One event with its envelope, the line of a file that stores it, its faults, and the order of records. Opens no file.

A line is a JSON object with the envelope `v` (version), `t` (time), `w` (writer), `n` (position in the file of the
writer), `id` (the life of the process that wrote it), then `kind` and the fields of the event, and at its end `c`: the
CRC-32 of every byte before it.

Clocks are set back, so times order only what nothing else orders. The records of one writer keep the order of its file.
The supervisor launches an attempt before the attempt's processes write, and writes its end after they have ended, so
their records stand between these two events.
"""

from __future__ import annotations

import errno
import heapq
import json
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from prime_train.core.units import counted
from prime_train.events.bounds import LATEST_S, MOST_LINES, explain_excess, range_of
from prime_train.events.supervisor_events import *  # noqa: F403
from prime_train.events.supervisor_events import AttemptEnded, LaunchAsked, SupervisorEvent
from prime_train.events.trainer_events import *  # noqa: F403
from prime_train.events.trainer_events import TrainerEvent
from prime_train.events.watch_events import *  # noqa: F403
from prime_train.events.watch_events import WatchEvent

Value = TypeVar("Value")

# A network file system that lost a handle; no free descriptor, process or memory at this moment; an interruption.
TRANSIENT = frozenset({errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ENOMEM})
LIMIT_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
SUPERVISOR = "supervisor"


def is_transient(error: OSError) -> bool:
    return error.errno in TRANSIENT


def retry(
    work: Callable[[], Value],
    again: Callable[[OSError], None] = lambda _: None,
    passes: Callable[[OSError], bool] = is_transient,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Value:
    """The result of `work`, which is called again after an error that `passes`, until LIMIT_S seconds have passed.

    `again` is called with the error before each repetition. Raises the OSError that does not pass.
    """
    until_s, pause_s = clock() + LIMIT_S, _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except OSError as error:
            if not passes(error) or clock() >= until_s:
                raise
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            again(error)


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """An event of a later version: kept and shown by name, without effect on the state."""

    kind: ClassVar[str] = "unrecognised"
    name: str


Event = SupervisorEvent | WatchEvent | TrainerEvent | Unrecognised


@dataclass(frozen=True, slots=True)
class Damage:
    """The records of one file that are not used. Lines that a crash cut short are no damage."""

    file: str
    missing: int = 0  # their positions are not in the file
    damaged: int = 0  # lines whose checksum, types or numbers are wrong
    foreign: int = 0  # lines of another program, or lines that are there twice
    unknown: int = 0  # records of a kind or version that this prime-train does not know
    unopened: str = ""  # why the file is not opened: it is a pipe or a link
    first: str = ""  # the first damaged line: "line 7: its step is -1, outside 0 to 1e+12"

    @property
    def is_lost(self) -> bool:
        """Something is lost. A record of a later version is not: that version reads it."""
        return bool(self.missing or self.damaged or self.foreign or self.unopened)

    def __str__(self) -> str:
        counts = ((self.missing, "missing record"), (self.damaged, "damaged line"), (self.foreign, "foreign line"))
        parts = [counted(count, what) for count, what in counts if count]
        if self.first:
            parts.append(f"first damaged {self.first}")
        if self.unknown:
            parts.append(f"{counted(self.unknown, 'event')} of an unknown kind")
        if self.unopened:
            parts.append(f"not opened, because {self.unopened}")
        return f"{self.file}: {', '.join(parts)}"


def describe(found: Iterable[Damage]) -> str:
    """One line about all files; "" if nothing is lost."""
    return "; ".join(str(damage) for damage in found if damage.is_lost)


VERSION = 2
LINE_BYTES = 1 << 20  # a longer line is no record; the writer shortens its texts
_CHECK_BYTES = len(',"c":"01234567"}')
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event) if cls is not Unrecognised}


@dataclass(frozen=True, slots=True)
class Record:
    """One event with its envelope. `time_s` is the Unix time on the writer's machine, in seconds."""

    time_s: float
    writer: str
    seq: int
    event: Event
    life: str = ""  # of the process that wrote it

    @property
    def order(self) -> tuple[float, str, int]:
        return (self.time_s, self.writer, self.seq)


class EventLine(NamedTuple):
    """What a line holds: a record, or the fault for which it has none."""

    record: Record | None
    fault: Literal["", "torn", "damaged"] = ""
    why: str = ""  # it is damaged: "its checksum does not fit"


class _RangeError(ValueError):
    """A number is beyond its range; the text says which."""


def encode(record: Record) -> str:
    """One JSON line, without the newline."""
    envelope: dict[str, Any] = {"v": VERSION, "t": round(record.time_s, 6), "w": record.writer, "n": record.seq}
    envelope |= {"id": record.life, "kind": record.event.kind}
    body = json.dumps(envelope | asdict(record.event), ensure_ascii=False, allow_nan=True, separators=(",", ":"))[:-1]
    return f'{body},"c":"{zlib.crc32(as_bytes(body)):08x}"}}'


def as_bytes(line: str) -> bytes:
    """The bytes that a file stores. A lone surrogate (from a file name that is not UTF-8) becomes a JSON escape."""
    return line.encode(errors="backslashreplace")


def decode(line: str) -> Record | None:
    """The record of one line; None if the line is not a record, such as one torn by a crash."""
    return read_line(as_bytes(line)).record


def read_line(line: bytes) -> EventLine:
    """The record of one line. Without one: "torn" if a crash or a full disk cut the line short, else "damaged"."""
    if not line.startswith(b'{"v":') or len(line) > LINE_BYTES:
        return EventLine(None, "damaged", "it is no event")
    if not line.endswith(b"}"):
        return EventLine(None, "torn")
    # The checksum first: it is faster than parsing, and bytes that it does not fit must never become an event.
    if line[-_CHECK_BYTES:] != b',"c":"%08x"}' % zlib.crc32(line[:-_CHECK_BYTES]):
        return EventLine(None, "damaged", "its checksum does not fit")
    try:
        return EventLine(_build(json.loads(line.decode("utf-8", "replace"))))
    except _RangeError as error:
        return EventLine(None, "damaged", str(error))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return EventLine(None, "damaged", "a field is missing or has a wrong type")


def _build(raw: dict[str, Any]) -> Record:
    """Raises ValueError, KeyError, TypeError or OverflowError for a value of a wrong type or beyond its range."""
    version, time_s, writer, seq, life = raw["v"], raw["t"], raw["w"], raw["n"], raw["id"]
    if not (type(version) is type(seq) is int and type(writer) is type(life) is str):
        raise TypeError
    if not 0 <= seq <= MOST_LINES:
        raise _RangeError(f"its position is outside 0 to {MOST_LINES:,}")
    if type(time_s) not in (int, float) or not 0 <= time_s <= LATEST_S:
        raise _RangeError(f"its time is not within 0 to {LATEST_S:.0f} s")
    return Record(float(time_s), writer, seq, _event(raw, known=version == VERSION), life)


def _event(raw: dict[str, Any], *, known: bool) -> Event:
    cls = _KINDS.get(raw["kind"]) if known else None
    if cls is None:
        return Unrecognised(name=str(raw["kind"])[:64])
    values = {}
    for name, kinds, is_required in _fields_of(cls.kind):
        # A field that was added later has a default, so that files without it can still be read.
        if name in raw:
            values[name] = _value(name, raw[name], kinds)
        elif is_required:
            raise KeyError(name)
    event: Event = cls(**values)
    return event


def _value(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    kind = type(value)
    if kind is list and tuple in kinds:
        if not all(type(item) is str for item in value):
            raise TypeError
        return tuple(value)
    if kind is int and float in kinds and int not in kinds:
        value, kind = float(value), float
    if kind not in kinds:
        raise TypeError
    if kind is int or kind is float:
        least, most = range_of(name, kind is float)
        # The comparison first, because a long run has millions of numbers.
        if not least <= value <= most and (excess := explain_excess(name, value)):
            raise _RangeError(excess)
    return value


@cache
def _fields_of(kind: str) -> tuple[tuple[str, tuple[Any, ...], bool], ...]:
    """Name, types and whether it is required, of each field of a kind of event."""
    cls = _KINDS[kind]
    hints = get_type_hints(cls)
    return tuple((f.name, _kinds_of(hints[f.name]), f.default is MISSING) for f in fields(cls))


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types of the JSON values of a field: `float | None` is (float, NoneType), `tuple[str, ...]` is (tuple,)."""
    if getattr(hint, "__origin__", None) is tuple:
        return (tuple,)
    return get_args(hint) or (hint,)


def merge(by_writer: Iterable[tuple[str, Iterable[Record]]]) -> Iterator[Record]:
    """All records in order.

    Each writer has its records as its file has them; they are read one at a time, because a long run has millions.
    Those of the supervisor, which are few, are read first.
    """
    files = list(by_writer)
    own = next((list(records) for writer, records in files if writer == SUPERVISOR), [])
    if len(files) == 1:
        return iter(own or files[0][1])
    stages = _Stages(own)
    others = (stages.of(records) for writer, records in files if writer != SUPERVISOR)
    merged = heapq.merge(zip(stages.own, own, strict=True), *others, key=lambda pair: (pair[0], pair[1].order))
    return (record for _, record in merged)


class _Stages:
    """Divides the supervisor's records into stages.

    Each launch is a stage, the records up to the end of the attempt are the next one, and the end begins another.
    """

    def __init__(self, supervisor: Sequence[Record]) -> None:
        self._of_attempt: dict[int, int] = {}
        self.own: list[int] = []
        self._latest_s: list[float] = []
        stage, latest_s = 0, 0.0
        for record in supervisor:
            match record.event:
                case LaunchAsked(attempt=attempt):
                    stage += 2
                    self._of_attempt[attempt] = stage
                    self.own.append(stage - 1)
                case AttemptEnded(attempt=attempt) if self._of_attempt.get(attempt) == stage:
                    stage += 1
                    self.own.append(stage)
                case _:
                    self.own.append(stage)
            # The latest time so far never falls, so that a search by time finds one place.
            latest_s = max(latest_s, record.time_s)
            self._latest_s.append(latest_s)

    def of(self, records: Iterable[Record]) -> Iterator[tuple[int, Record]]:
        """Each record of another writer with its stage, which never falls."""
        stage = 0
        for record in records:
            stage = max(stage, self._find(record))
            yield stage, record

    def _find(self, record: Record) -> int:
        if isinstance(record.event, TrainerEvent):
            # The attempt orders an event better than its time: the clock of another machine may differ by minutes.
            found = self._of_attempt.get(record.event.attempt)
            if found is not None:
                return found
        before = bisect_right(self._latest_s, record.time_s)
        return self.own[before - 1] if before else 0
