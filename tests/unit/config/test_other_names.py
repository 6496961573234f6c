"""Keys of other programs in a run.toml: a suggestion is right or absent, and no certain repair leaves its table.

foreign_keys.csv has keys of transformers, TRL, axolotl, LLaMA-Factory and torchtitan, each with our keys for it. What
foreign_keys_by_hand.csv says was written from the meaning of each key in the source of its program, without a look at
the registry: transformers 5.24, TRL f2cd577, axolotl 067b021, LLaMA-Factory ff6d4d1, torchtitan b5bcd76 and earlier.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config.parsed_config import Fault
from prime_train.config.run_toml import schema
from prime_train.config.schema import Table
from prime_train.config.suggest import KnownKeys, explain_unknown
from prime_train.registry.other_names import other_names
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint
from prime_train.toml.document import KeyPath, dotted, to_toml

with Path(__file__).with_name("foreign_keys.csv").open(encoding="utf-8") as _file:
    KEYS = {row["key"]: frozenset(filter(None, row["places"].split("|"))) for row in csv.DictReader(_file)}
with Path(__file__).with_name("foreign_keys_by_hand.csv").open(encoding="utf-8") as _file:
    # (table in which the program has the key, "" for none, key) -> what it means here
    BY_HAND: dict[tuple[str, str], frozenset[str]] = {}
    for _row in csv.DictReader(_file):
        _meant = frozenset(filter(None, _row["meaning"].split("|")))
        BY_HAND[_row["table"], _row["key"]] = BY_HAND.get((_row["table"], _row["key"]), frozenset()) | _meant
VALUES: tuple[Any, ...] = (8, 0.5, "abc", True, ["a"], [1, 2])


def tables(table: Table, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Table]]:
    yield at, table
    for key, item in table.fields.items():
        if isinstance(item.shape, Table):
            yield from tables(item.shape, (*at, key))


TABLES = dict(tables(schema()))


def explain(at: KeyPath, key: str, value: Any) -> Fault:
    """What is said about an unknown key of a table."""
    path = (*at, key)
    known = KnownKeys(schema(), values_with(path, value), other_names("run"))
    return explain_unknown(known, TABLES[at], path, value)


def choose_values(at: KeyPath, number: int) -> tuple[Any, Any]:
    """Two of VALUES for a key in a table; over the tables each key gets all of them."""
    first = (list(TABLES).index(at) + number) % len(VALUES)
    return VALUES[first], VALUES[first - len(VALUES) // 2]


def find_places(fault: Fault) -> set[str]:
    """The keys that a patch sets, and those that the words name in place of the key."""
    named = re.findall(r"its name here is ([\w. ]+?)(?:;|$)", fault.what)
    return {place for place, made in fault.patch.items() if made is not None} | {
        place for words in named for place in words.split(" or ")
    }


def values_with(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def test_at_least_400_keys_are_tried() -> None:
    assert len(KEYS) >= 400


@pytest.mark.parametrize("at", TABLES, ids=lambda at: dotted(at) or "the top")
def test_a_suggestion_for_a_foreign_key_is_right_or_absent(at: KeyPath) -> None:
    for number, key in enumerate(KEYS):
        for value in choose_values(at, number) if key not in TABLES[at].fields else ():
            fault = explain(at, key, value)
            told = {place for place, made in fault.patch.items() if made is not None}
            assert told <= KEYS[key], (at, key, value, fault.fix)
            if fault.safe:
                assert all(place.rpartition(".")[0] == dotted(at) for place in told), (at, key, fault.fix)


def test_300_keys_have_a_meaning_that_was_written_by_hand() -> None:
    assert len(BY_HAND) >= 300
    assert {place for meant in BY_HAND.values() for place in meant} <= set(_keys(schema()))


def _keys(table: Table, at: str = "") -> Iterator[str]:
    for key, item in table.fields.items():
        if isinstance(item.shape, Table):
            yield from _keys(item.shape, f"{at}{key}.")
        else:
            yield f"{at}{key}"


@pytest.mark.parametrize("at", TABLES, ids=lambda at: dotted(at) or "the top")
def test_a_suggestion_is_what_the_key_means_in_its_program(at: KeyPath) -> None:
    for number, (table, key) in enumerate(BY_HAND):
        if table or key in TABLES[at].fields:
            continue
        right = BY_HAND["", key] | BY_HAND.get((dotted(at), key), frozenset())
        for value in choose_values(at, number):
            told = find_places(explain(at, key, value))
            assert told <= right, (at, key, value, told)


@pytest.mark.parametrize(("table", "key"), [each for each in BY_HAND if each[0]])
def test_a_key_in_a_table_of_torchtitan_has_its_own_meaning(table: str, key: str) -> None:
    """Its table is named where it has another name here; of other tables the keys are listed with their places."""
    right = BY_HAND[table, key]
    at = tuple(other_names("run").tables.get(table, table).split("."))
    if at in TABLES:
        if key in TABLES[at].fields:
            assert dotted((*at, key)) in right
        else:
            assert find_places(explain(at, key, 8)) <= right
        return
    findings = lint(f"[run]\nmax_steps = 1\n[{table}]\n{key} = 8\n", "run.toml").findings
    (finding,) = (each for each in findings if each.key == table)
    (told,) = re.findall(rf"\b{key} is ([\w. ]+)", finding.fix) or [""]
    assert set(filter(None, told.split(" or "))) <= right, finding.fix
    assert not finding.patch


def test_nine_of_ten_keys_that_we_have_are_named() -> None:
    """In the words of the repair, typed into [run]."""
    meant = {key: places for (table, key), places in BY_HAND.items() if not table and places}
    named = {
        key
        for key, places in meant.items()
        if key in TABLES["run",].fields
        or any(place in f"{fault.what} {fault.fix}" for fault in _faults_in_run(key) for place in places)
    }
    assert len(named) >= 0.9 * len(meant), meant.keys() - named


def _faults_in_run(key: str) -> list[Fault]:
    return [explain(("run",), key, value) for value in VALUES]


@pytest.mark.parametrize(
    "line",
    [
        "[run]\nsteps = 20\n",
        "[checkpoint]\ndir = 'x'\n",
        "[optim]\nbetas = [0.9, 0.95]\n",
        "[data]\npath = 'x'\n",
        "[eval]\nevery = 5\n",
        "[batch]\nsize = 4\n",
    ],
)
def test_a_safe_fix_leaves_a_key_that_another_table_has(line: str) -> None:
    fixed = fix_text(line, lambda text: lint(text, "run.toml"), keep_safe)
    assert fixed.text == line


def keep_safe(verdict: Verdict) -> Verdict:
    return verdict._replace(findings=tuple(finding for finding in verdict.findings if finding.safe))


@settings(deadline=None, max_examples=100)
@given(at=st.sampled_from(sorted(TABLES, key=dotted)), key=st.sampled_from(sorted(KEYS)), value=st.sampled_from(VALUES))
def test_a_safe_fix_writes_into_no_other_table(at: KeyPath, key: str, value: Any) -> None:
    table = f"[{dotted(at)}]\n" if at and at != ("run",) else ""
    line = f"{key} = {to_toml(value)}\n"
    run = "[run]\nmax_steps = 1\n"  # what makes it a run.toml
    text = f"{run}{table}{line}" if at else f"{line}{run}"
    fixed = tomli.loads(fix_text(text, lambda each: lint(each, "run.toml"), keep_safe).text)
    assert set(fixed) <= {"run", str(at[0]) if at else key}, text


def test_every_place_is_a_key_of_a_run_toml() -> None:
    from prime_train.config.suggest import _find_field

    names = other_names("run")
    places = [place for several in names.names.values() for place in several] + list(names.tables.values())
    assert all(_find_field(schema(), tuple(place.split("."))) for place in places)
