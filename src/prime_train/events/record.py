"""One event with its envelope, and the line of a file that stores it. Opens no file.

A line is a JSON object with the envelope `v` (version), `t` (time), `w` (writer), `n` (position in the file of the
writer), `id` (the life of the process that wrote it), then `kind` and the fields of the event, and at its end `c`: the
CRC-32 of every byte before it.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from prime_train.events.schema import Event, Unrecognised

VERSION = 2
LINE_BYTES = 1 << 20  # a longer line is no record; the writer shortens its texts
_LATEST_S = 253_402_300_799.0  # the end of the year 9999, the last that a date can show
_MOST = 2**63
_CHECK_BYTES = len(',"c":"01234567"}')
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event) if cls is not Unrecognised}
# What a trainer measured may be no number, as after a division by zero. Every other number is finite.
MEASURED = frozenset({"loss", "grad_norm", "reward", "tokens_per_s", "answer_tokens"})


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


class Line(NamedTuple):
    """What a line holds: a record, or the fault for which it has none."""

    record: Record | None
    fault: Literal["", "torn", "damaged"] = ""


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


def read_line(line: bytes) -> Line:
    """The record of one line. Without one: "torn" if a crash or a full disk cut the line short, else "damaged"."""
    if not line.startswith(b'{"v":') or len(line) > LINE_BYTES:
        return Line(None, "damaged")
    if not line.endswith(b"}"):
        return Line(None, "torn")
    # The checksum first: it is faster than parsing, and bytes that it does not fit must never become an event.
    if line[-_CHECK_BYTES:] != b',"c":"%08x"}' % zlib.crc32(line[:-_CHECK_BYTES]):
        return Line(None, "damaged")
    try:
        return Line(_build(json.loads(line.decode("utf-8", "replace"))))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Line(None, "damaged")


def _build(raw: dict[str, Any]) -> Record:
    """Raises ValueError, KeyError or TypeError for a value of a wrong type or beyond its range."""
    version, time_s, writer, seq, life = raw["v"], raw["t"], raw["w"], raw["n"], raw["id"]
    if not (_is_count(version) and _is_count(seq) and type(writer) is str and type(life) is str):
        raise TypeError
    if type(time_s) not in (int, float) or not 0 <= time_s <= _LATEST_S:
        raise ValueError
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
    if kind is int and not -_MOST < value < _MOST:
        raise ValueError
    if kind is float and value - value != 0.0 and name not in MEASURED:
        raise ValueError
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


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
