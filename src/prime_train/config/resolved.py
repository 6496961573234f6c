"""Lists every value of a config with its defaults, each with the place that it comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prime_train.config.compare import foreign_values, own_values
from prime_train.config.differences import Value, flatten_values, plain
from prime_train.config.parsed_config import Reading
from prime_train.config.prime_rl import read as prime_rl_files
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.translate import Defaults
from prime_train.toml.document import Document, KeyPath, dotted, key_path, value_at

DEFAULT = "default"


class ResolvedValue(NamedTuple):
    """One key. `source`: "run.toml:7", or "default"; with another key behind it where that one sets the value."""

    key: str
    value: Value
    source: str


def resolve(reading: Reading) -> tuple[ResolvedValue, ...]:
    """Every value that the config sets or has by default. A file for another program has only what it sets."""
    if reading.foreign is not None:
        return tuple(_list_foreign(reading))
    if reading.dialect != prime_rl_files.DIALECT:
        return tuple(_list(reading, flatten_values(own_values(reading))))
    return tuple(_list_prime_rl(reading))


def _list(reading: Reading, values: Mapping[str, Value]) -> Iterator[ResolvedValue]:
    for key, value in values.items():
        yield ResolvedValue(key, value, _locate(reading, key_path(key, reading.document.values)) or DEFAULT)


def _locate(reading: Reading, path: KeyPath) -> str:
    """The file and line that set a key; "" if none does. The file that overrules the others counts."""
    for document in reading.parts:
        if path and value_at(document.values, path) is not None:
            return _place(document, path)
    return ""


def _place(document: Document, path: KeyPath) -> str:
    found = document.nearest(path)
    return document.path if found is None else f"{document.path}:{found.key.line}"


def _list_foreign(reading: Reading) -> Iterator[ResolvedValue]:
    parts = reading.foreign or ()
    values = foreign_values(reading)
    tables = [values] if len(parts) == 1 else list(values.values())
    for part, table, name in zip(parts, tables, ("",) if len(parts) == 1 else values, strict=True):
        for key, value in flatten_values(table).items():
            path = (*part.at, *key_path(key, part.values))
            yield ResolvedValue(f"{dotted((name,))}.{key}" if name else key, value, _place(part.document, path))


def _list_prime_rl(reading: Reading) -> Iterator[ResolvedValue]:
    """What the file sets, then what prime-rl of its generation has by default, then [prime_train]."""
    assert reading.run is not None
    generation = load(reading.generation)
    theirs = {key: value for key, value in reading.document.values.items() if key != prime_rl_files.OWN_TABLE}
    written = flatten_values(plain(theirs))
    yield from _list(reading, written)
    defaults = Defaults(reading, generation, theirs)
    for path, _ in generation.paths(reading.root):
        key, held = dotted(path), defaults.hold(path)
        if held is None or held.value is None or isinstance(held.value, Mapping) or key in written:
            continue
        value = plain(held.value)
        if value_at(theirs, path) is None and not isinstance(value, Mapping):
            source = f"{_locate(reading, held.at)} ({dotted(held.at)})" if held.at else DEFAULT
            yield ResolvedValue(key, value, source)
    own = {prime_rl_files.OWN_TABLE: plain(reading.run.prime_train)}
    yield from _list(reading, flatten_values(own))
