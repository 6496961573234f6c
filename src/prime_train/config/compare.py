"""Compares the values of two configs, also where formats and names of keys differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.config import run_toml, schema
from prime_train.config.differences import (
    Difference,
    Table,
    diff,
    flatten,
    is_same,
    is_tables,
    list_differences,
    plain,
    values_of,
)
from prime_train.config.foreign.values import ForeignPart, Open
from prime_train.config.parsed_config import Reading
from prime_train.config.prime_rl import read as prime_rl_files
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.translate import Defaults, root_in, translate
from prime_train.config.prime_rl.validate_value import NONE
from prime_train.spec import RunSpec
from prime_train.toml.document import dotted, key_path, patched, value_at


class ConfigComparison(NamedTuple):
    """The differences of two configs. `notes`: under which names they were compared, and what was not compared."""

    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


def compare(before: Reading, after: Reading) -> ConfigComparison:
    """The values that differ. Both readings have a run, or are files of another program that it has for itself."""
    if before.dialect != after.dialect or before.root != after.root:
        generations = {prime_rl_files.DIALECT} == {before.dialect, after.dialect}
        if not (generations and root_in(load(after.generation), before.root) == after.root):
            return _compare_runs(before, after)
    if before.dialect == prime_rl_files.DIALECT:
        return _compare_prime_rl(before, after)
    if before.foreign is not None and after.foreign is not None:
        title = before.dialect
        note = (
            f"{title}: a key that only one file sets may have that value in the other one, too: defaults are not known"
        )
        return ConfigComparison(diff(foreign_values(before), foreign_values(after)), (note,))
    return ConfigComparison(diff(own_values(before), own_values(after)))


def describe_key(key: str) -> str:
    """What a key of a run.toml is for; "" for a key that has no description."""
    table: schema.Table | None = run_toml.schema()
    item: schema.Field | None = None
    is_inside = False
    for part in key_path(key, {}):
        if is_inside:  # the name of an entry
            is_inside = False
            continue
        item = table.find(str(part)) if table is not None else None
        table, is_inside = (None, False) if item is None else schema.table_below(item.shape)
    return item.doc if item is not None else ""


def own_values(reading: Reading) -> Table:
    """The values in a run.toml or a recipe with all defaults. A value that is no legal one is as it is written."""
    assert reading.run is not None
    values, written = values_of(reading.run), reading.document.values
    faulty = {fault.key: value_at(written, fault.key) for fault in reading.faults if fault.key}
    for key, value in faulty.items():
        if value is not None and not any(isinstance(part, int) for part in key):
            values = patched(values, {dotted(key): plain(value)})
    return values


def foreign_values(reading: Reading) -> Table:
    """The values in each part by its number and name; those of the only part without."""
    parts = [(part.format, plain(_close(part.values))) for part in reading.foreign or ()]
    if len(parts) == 1:
        return dict(parts[0][1])
    return {f"{number}.{name}": values for number, (name, values) in enumerate(parts)}


def split_key(parts: Sequence[ForeignPart], key: str) -> tuple[int, str]:
    """The number of the part that a key of `foreign_values` is in, and the key within it."""
    if len(parts) == 1:
        return 0, key
    name, *below = key_path(key, {})
    return int(str(name).partition(".")[0]), dotted(tuple(below))


def _close(value: Any) -> Any:
    """The value, with the text for what only the run knows."""
    if isinstance(value, Open):
        return value.text
    if isinstance(value, Mapping):
        return {key: _close(below) for key, below in value.items()}
    return [_close(below) for below in value] if isinstance(value, list | tuple) else value


def _compare_runs(before: Reading, after: Reading) -> ConfigComparison:
    """The fields that both formats have."""
    assert before.run is not None
    assert after.run is not None
    shared = {key for key in _keys(before.run, after.run) if before.has(key) and after.has(key)}
    found = [one for one in list_differences(before.run, after.run) if one.key in shared or one.key == "format"]
    kinds = [f"{reading.dialect} ({reading.root})" for reading in (before, after)]
    note = f"{kinds[0]} and {kinds[1]}: only the {len(shared)} values that both have were compared, by run.toml's keys"
    kind = () if before.dialect == after.dialect else (Difference("format", before.dialect, after.dialect),)
    return ConfigComparison((*kind, *(one for one in found if one.key != "format")), (note,))


def _keys(before: RunSpec, after: RunSpec) -> set[str]:
    return {*flatten(before), *flatten(after)}


def _compare_prime_rl(before: Reading, after: Reading) -> ConfigComparison:
    """Under the keys that the newer generation has. A key that one file omits has its default."""
    assert before.run is not None
    assert after.run is not None
    generation = load(max(before.generation, after.generation))
    sides = [(reading, translate(reading, generation)) for reading in (before, after)]
    defaults = [Defaults(reading, generation, values) for reading, values in sides]
    found = [
        Difference(one.key, was, value)
        for one in diff(plain(sides[0][1]), plain(sides[1][1]))
        for was, value in [[_resolve(side, one.key, own) for side, own in zip(defaults, one[1:], strict=True)]]
        if not is_same(*(None if side == NONE else side for side in (was, value)))
    ]
    own = diff({"prime_train": plain(before.run.prime_train)}, {"prime_train": plain(after.run.prime_train)})
    return ConfigComparison((*found, *own), _note_generations(before, after))


def _resolve(side: Defaults, key: str, written: Any) -> Any:
    """What prime-rl makes of a key: "3e-6" is a number, "None" is no value, and an unset key has its default.

    A table counts as one without keys, and a list of tables by the names in it, because each key below has its own row.
    """
    held = plain(side.find(key))
    if isinstance(held, Mapping):
        return {}
    return written if held is None or is_tables(held) else held


def _note_generations(before: Reading, after: Reading) -> tuple[str, ...]:
    if before.generation == after.generation:
        return ()
    newer = max(before.generation, after.generation)
    return (
        f"prime-rl {before.generation} and {after.generation}: keys are those of {newer}; "
        "a default that differs between them is no difference where neither file sets the key",
    )
