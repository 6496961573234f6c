"""Keys of other programs in a run.toml: a suggestion is right or absent, and no certain repair leaves its table.

foreign_keys.csv has keys of transformers, TRL, axolotl, LLaMA-Factory and torchtitan, each with our keys for it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config.run_toml import schema
from prime_train.config.schema import Table
from prime_train.config.suggest import KnownKeys, explain_unknown
from prime_train.registry.other_names import other_names
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint
from prime_train.toml.document import KeyPath, dotted, to_toml

with Path(__file__).with_name("foreign_keys.csv").open(encoding="utf-8") as _file:
    KEYS = {row["key"]: frozenset(filter(None, row["places"].split("|"))) for row in csv.DictReader(_file)}
VALUES: tuple[Any, ...] = (8, 0.5, "abc", True, ["a"], [1, 2])


def tables(table: Table, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Table]]:
    yield at, table
    for key, item in table.fields.items():
        if isinstance(item.shape, Table):
            yield from tables(item.shape, (*at, key))


TABLES = dict(tables(schema()))


def values_with(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def test_at_least_400_keys_are_tried() -> None:
    assert len(KEYS) >= 400


@pytest.mark.parametrize("at", TABLES, ids=lambda at: dotted(at) or "the top")
def test_a_suggestion_for_a_foreign_key_is_right_or_absent(at: KeyPath) -> None:
    for key in KEYS.keys() - TABLES[at].fields.keys():
        for value in VALUES:
            path = (*at, key)
            known = KnownKeys(schema(), values_with(path, value), other_names("run"))
            fault = explain_unknown(known, TABLES[at], path, value)
            told = {place for place, made in fault.patch.items() if made is not None}
            assert told <= KEYS[key], (path, value, fault.fix)
            if fault.safe:
                assert all(place.rpartition(".")[0] == dotted(at) for place in told), (path, fault.fix)


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
