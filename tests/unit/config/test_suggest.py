"""An unknown key in an item of an array of tables is repaired in that item, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import tomli
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prime_train.config.parsed_config import MISSING_KEY, UNKNOWN_KEY, Fault
from prime_train.config.prime_rl.schema import generations, load
from prime_train.config.run_toml import read, schema
from prime_train.config.schema import (
    Array,
    Field,
    Flag,
    Number,
    OneOf,
    Scalars,
    Shape,
    Table,
    Text,
    shapes_of,
    walk_fields,
)
from prime_train.rules.judge import lint
from prime_train.toml.document import KeyPath, dotted, patched, to_toml, value_at
from prime_train.toml.edit import edited

BASE = '[run]\nname = "x"\nmax_steps = 1000\n[[data.sources]]\nkind = "python-stdlib"\n'


def fill(shape: Shape, number: int = 0) -> Any:
    """A legal value; of tables and arrays, with all keys."""
    match shape:
        case Table(fields=fields):
            return {key: fill(item.shape, number) for key, item in fields.items()}
        case Array(item=item):
            return [fill(item, each) for each in (1, 2)]
        case Number(whole=whole):
            return 3 + number if whole else 0.25
        case OneOf(values=values):
            return values[0]
        case Flag():
            return True
        case Scalars():
            return {"a": number}
    return f"text {number}"


def find_arrays(table: Table, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Table]]:
    """(path, table of its items) of every array of tables; one inside of another is in its second item."""
    for key, item in table.fields.items():
        if isinstance(item.shape, Table):
            yield from find_arrays(item.shape, (*at, key))
        elif isinstance(item.shape, Array) and isinstance(item.shape.item, Table):
            yield (*at, key), item.shape.item
            yield from find_arrays(item.shape.item, (*at, key, 1))


ARRAYS = dict(find_arrays(schema()))
LEAVES = sorted({path[-1] for path, _, item in walk_fields(schema()) if not isinstance(item.shape, Table)})


def test_every_array_of_tables_is_tested() -> None:
    assert {"data.sources", "eval.sets", "eval.sets.1.sources", "eval.benchmarks", "tasks"} <= set(map(dotted, ARRAYS))


def write(values: Mapping[str, Any], header: str = "") -> str:
    """TOML with a header for each table, and for each item of an array of tables."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict) and not is_array(value)}
    text = "".join(f"{key} = {to_toml(value)}  # of {key}\n" for key, value in plain.items())
    for key, value in values.items():
        name = f"{header}.{key}" if header else key
        if isinstance(value, dict):
            text += f"[{name}]\n{write(value, name)}"
        elif is_array(value):
            text += "".join(f"[[{name}]]\n{write(item, name)}" for item in value)
    return text


def is_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def write_inline(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in values.items())


def misspell(draw: st.DrawFn, key: str) -> str:
    """`key` with a letter less, one more, or two neighbours swapped."""
    place = draw(st.integers(0, len(key) - 2))
    swapped = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
    return draw(st.sampled_from([key[:place] + key[place + 1 :], f"{key[:place]}x{key[place:]}", swapped]))


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, dict[str, Any], KeyPath, KeyPath]:
    """(text, its values with the right key, the path of the misspelt key, that of the right one)."""
    array = draw(st.sampled_from(sorted(ARRAYS, key=dotted)))
    legal = list(ARRAYS[array].fields)
    key = draw(st.sampled_from([each for each in legal if not is_array(fill(ARRAYS[array].fields[each].shape))]))
    bad = misspell(draw, key)
    assume(bad not in legal and len(bad) > 1)
    values: dict[str, Any] = tomli.loads(BASE)
    top = str(array[0])
    values[top] = (
        values.get(top, {}) | fill(schema().fields[top].shape) if top != "tasks" else fill(Array(ARRAYS[array]))
    )
    item = (*array, draw(st.integers(0, 1)))
    right = patched(values, {})
    table = value_at(values, item)
    written = {(bad if each == key else each): value for each, value in table.items()}
    table.clear()
    table.update(written)
    text = draw(st.sampled_from([write, write_inline]))(values)
    return text, right, (*item, bad), (*item, key)


@settings(deadline=None, max_examples=150)
@given(case=misspelt())
def test_a_misspelt_key_of_an_item_is_renamed_in_its_item(
    case: tuple[str, dict[str, Any], KeyPath, KeyPath],
) -> None:
    text, right, bad, key = case
    fault = fault_at(text, bad)
    value = value_at(right, key)
    if isinstance(value, dict):  # a table of free keys is named, and its keys are the user's
        assert fault.patch in ({}, {dotted(bad): None, dotted(key): value})
        return
    assert fault.patch == {dotted(bad): None, dotted(key): value}
    fixed = edited(text, fault.patch)
    assert tomli.loads(fixed) == right
    assert fixed.count("#") == text.count("#")


def fault_at(text: str, path: KeyPath) -> Fault:
    (fault,) = (each for each in read(text, "run.toml").faults if each.key == path and each.code == UNKNOWN_KEY)
    return fault


@pytest.mark.parametrize("array", ARRAYS, ids=dotted)
def test_a_key_of_another_table_leaves_no_item_without_doubt(array: KeyPath) -> None:
    """What an item has is of one source, set or task; the tables beside it are of the whole run."""
    for key in (*LEAVES, "batch_size", "steps", "seq_len", "dtype"):
        if key in ARRAYS[array].fields:
            continue
        above = "".join(
            f"[[{dotted(tuple(p for p in array[:n] if p != 1))}]]\n" * 2 for n in range(len(array)) if array[n] == 1
        )
        names = dotted(tuple(part for part in array if isinstance(part, str)))
        text = f"{BASE}{above}[[{names}]]\n[[{names}]]\n{key} = 8\n"
        item = (*array, 2 if names == "data.sources" else 1)
        fault = fault_at(text, (*item, key))
        moved = [place for place, value in fault.patch.items() if value is not None]
        assert not any(fault.safe and not place.startswith(dotted(item)) for place in moved), key


SETS = BASE + '[[eval.sets]]\nname = "a"\n{}\n[[eval.sets]]\nname = "b"\n[[eval.sets.sources]]\nkind = "files"\n'


@pytest.mark.parametrize("key", ["path", "paths", "kind"])
def test_a_key_of_a_missing_source_makes_it_in_its_set(key: str) -> None:
    text = SETS.format(f'{key} = "files"  # mine')
    fault = fault_at(text, ("eval", "sets", 0, key))
    right = key.removesuffix("s")
    assert fault.fix == f'[[eval.sets.sources]] with {right} = "files"'
    assert tomli.loads(edited(text, fault.patch))["eval"]["sets"] == [
        {"name": "a", "sources": [{right: "files"}]},
        {"name": "b", "sources": [{"kind": "files"}]},
    ]


def test_a_key_of_the_only_source_moves_there() -> None:
    text = SETS.format("").replace('name = "b"', 'name = "b"\npath = "b.txt"')
    fault = fault_at(text, ("eval", "sets", 1, "path"))
    assert "it belongs in [[eval.sets.sources]]" in fault.what
    assert fault.fix == 'eval.sets.1.sources.0.path = "b.txt"'
    sets = tomli.loads(edited(text, fault.patch))["eval"]["sets"]
    assert sets[1] == {"name": "b", "sources": [{"kind": "files", "path": "b.txt"}]}


def test_a_key_of_one_of_two_sources_is_left_to_the_user() -> None:
    text = (
        SETS.format("").replace('name = "b"', 'name = "b"\npath = "b.txt"') + '[[eval.sets.sources]]\nkind = "files"\n'
    )
    fault = fault_at(text, ("eval", "sets", 1, "path"))
    assert "it belongs in one of [[eval.sets.sources]]" in fault.what
    assert not fault.patch


def test_all_keys_of_a_missing_source_end_in_one_source() -> None:
    from prime_train.rules.fix import fix_text

    fixed = fix_text(SETS.format('kind = "files"\npath = "a.txt"'), lambda text: lint(text, "run.toml"))
    assert tomli.loads(fixed.text)["eval"]["sets"][0] == {"name": "a", "sources": [{"kind": "files", "path": "a.txt"}]}


def test_a_name_of_another_tool_in_an_item_changes_no_training() -> None:
    text = BASE + '[[eval.benchmarks]]\nkind = "lm-eval"\ntask = "arc_easy"\nbatch_size = 8\n'
    fault = fault_at(text, ("eval", "benchmarks", 0, "batch_size"))
    assert not fault.patch
    assert fault.fix.startswith("take it out; [[eval.benchmarks]] knows kind, path, task")


def test_a_key_that_several_tables_have_is_not_moved() -> None:
    fault = fault_at(BASE + '[optim]\npath = "x"\n', ("optim", "path"))
    assert "belongs" not in fault.what
    assert not fault.patch


def test_a_missing_array_of_an_item_is_named_as_toml_writes_it() -> None:
    faults = read(BASE + '[[eval.sets]]\nname = "a"\n', "run.toml").faults
    assert [(fault.code, fault.fix) for fault in faults] == [(MISSING_KEY, "add a [[eval.sets.sources]] table")]


# --- prime-rl ------------------------------------------------------------------------------------


def entries(table: Table, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Table]]:
    """(path of the array, its table) of every array of tables below a root, but not of those inside another one."""
    for name, item in table.fields.items():
        for shape in shapes_of(item.shape):
            if isinstance(shape, Array) and isinstance(shape.item, Table):
                yield (*at, name), shape.item
            elif isinstance(shape, Table):
                yield from entries(shape, (*at, name))


def below(table: Table, at: KeyPath = (), seen: tuple[str, ...] = ()) -> Iterator[KeyPath]:
    for name, item in table.fields.items():
        yield (*at, name)
        for shape in shapes_of(item.shape):
            if isinstance(shape, Table) and shape.name not in seen:
                yield from below(shape, (*at, name), (*seen, shape.name))


def value_of(item: Field) -> Any:
    """A value that the field may have; None where that is a table or a list."""
    for shape in shapes_of(item.shape):
        match shape:
            case Number(whole=whole):
                return 4 if whole else 0.5
            case Flag():
                return True
            case OneOf(values=values):
                return values[0]
            case Text():
                return "abc"
    return None


@pytest.mark.parametrize("name", generations())
def test_a_key_from_below_an_entry_of_prime_rl_stays_in_it(name: str) -> None:
    """A setting of one environment does not become one of all."""
    generation, tried = load(name), 0
    for array, table in entries(generation.roots["rl"]):
        paths = list(below(table))
        for path in paths:
            item = generation.find("rl", (*array, 0, *path))
            if len(path) < 2 or item is None or table.find(str(path[-1])) or value_of(item) is None:
                continue
            text = f"[[{dotted(array)}]]\n{path[-1]} = {to_toml(value_of(item))}\n"
            (fault,) = (each for each in lint_prime_rl(text, name) if each.key == (*array, 0, path[-1]))
            moved = [place for place, value in fault.patch.items() if value is not None]
            wanted = [dotted((*array, 0, *each)) for each in paths if each[-1] == path[-1]]
            assert moved[0] in wanted, (fault.what, wanted)
            tried += 1
    assert tried or name == "2026-01", "its environments have no tables"


def lint_prime_rl(text: str, generation: str) -> tuple[Fault, ...]:
    from prime_train.config import detect

    return detect.read(text, "rl.toml", generation).faults
