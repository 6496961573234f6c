"""The lines between the child of a watch and the supervisor: the child writes samples as JSON, `load` reads them.

It imports little, because the child stays in memory as long as the run.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

Value = TypeVar("Value")

_WRITING = threading.Lock()  # a child may write from several threads
_SHOWN = 80  # characters of a value in an error


def serve(sample: Callable[[], object], interval_s: float, pause: Callable[[float], None] = time.sleep) -> NoReturn:
    """Write a sample at once and then each `interval_s`, for ever. `pause` waits for the seconds until the next one."""
    while True:
        began_s = time.monotonic()
        write(sample())
        pause(max(0.0, interval_s - (time.monotonic() - began_s)))


def write(value: object) -> None:
    """Write a sample as one line of JSON. A sampler's program calls this."""
    with _WRITING:
        sys.stdout.write(dump(value) + "\n")
        sys.stdout.flush()


def dump(value: object) -> str:
    """A value as JSON: dataclasses, named tuples, paths and sets too. Raises TypeError for another type."""
    return json.dumps(value, default=_to_plain, separators=(",", ":"))


def _to_plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):  # `dataclasses` would be imported for this alone
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return list(value) if isinstance(value, set | frozenset) else os.fspath(value)


def load(kind: type[Value], raw: object) -> Value:
    """The value of `kind` in what `dump` wrote, parsed or not. Raises ValueError with its place for anything else."""
    value: Value = _read(kind, json.loads(raw) if isinstance(raw, str) else raw, "$")
    return value


def _read(kind: Any, raw: Any, at: str) -> Any:
    if type(raw) is int and not -(2**63) <= raw < 2**63:  # a server may send it, and no float holds each of these
        raise ValueError(f"{at}: an integer of more than 64 bits")
    origin, parts = get_origin(kind), get_args(kind)
    if NoneType in parts:  # X | None
        return None if raw is None else _read(parts[0], raw, at)
    if kind is Path and isinstance(raw, str):
        return Path(raw)
    if kind is float and type(raw) is int:  # JSON has no difference between them
        return float(raw)
    if type(raw) is kind or (origin is Literal and raw in parts):
        return raw
    if isinstance(raw, dict) and hasattr(kind, "__dataclass_fields__"):
        return _read_fields(kind, raw, at)
    if isinstance(raw, dict) and origin is Mapping:
        return {name: _read(parts[1], one, f"{at}.{name}") for name, one in raw.items()}
    if isinstance(raw, list) and origin in (tuple, frozenset):
        kinds = parts if len(parts) > 1 and parts[1] is not ... else parts[:1] * len(raw)
        return origin(_read_all(kinds, raw, at))
    if isinstance(raw, list) and hasattr(kind, "_fields"):  # a named tuple, which JSON writes as a list
        return kind(*_read_all(tuple(_find_hints(kind).values()), raw, at))
    raise ValueError(f"{at}: {raw!r:.{_SHOWN}} is not of the type {getattr(kind, '__name__', kind)}")


def _read_all(kinds: tuple[Any, ...], raw: list[Any], at: str) -> list[Any]:
    if len(kinds) != len(raw):
        raise ValueError(f"{at}: {len(raw)} values are not {len(kinds)}")
    return [_read(kind, one, f"{at}[{number}]") for number, (kind, one) in enumerate(zip(kinds, raw, strict=True))]


def _read_fields(kind: Any, raw: dict[str, Any], at: str) -> Any:
    """A dataclass. A field with a default may be missing, and a name that is no field is ignored."""
    hints = _find_hints(kind)
    values = {name: _read(hints[name], one, f"{at}.{name}") for name, one in raw.items() if name in hints}
    try:
        return kind(**values)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{at}: {error}") from None


@cache
def _find_hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
