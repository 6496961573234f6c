"""Conditions and orders of a table of runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.views.compare import conditions
from prime_train.views.compare.ends import Best
from prime_train.views.compare.rows import RunRow, keys_of


def row(name: str, last: float | None = None, lr: float = 1e-3, **more: Any) -> RunRow:
    config = {"optim": {"lr": lr, "clip_norm": None, "kind": "adamw"}, "model": {"compile": lr > 1e-3, "path": None}}
    return RunRow(Path(name), name, "finished", last=last, config=config)._replace(**more)


ROWS = [
    row("a", last=2.0),
    row("b", last=3.0, lr=1e-4, state="failed", kind="sft"),
    row("c", lr=3e-3, best=Best(1.5, True)),
]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (("state=failed",), "b"),
        (("state!=failed",), "ac"),
        (("optim.lr>1e-4",), "ac"),
        ((" optim.lr >= 1e-3 ", "last<=2"), "a"),
        (("last=2",), "a"),
        (("last!=2",), "b"),
        (("last=none",), "c"),
        (("last!=none",), "ab"),
        (("best<2",), "c"),
        (("model.compile=True",), "c"),
        (("model.path=null",), "abc"),
        (("kind='sft'",), "b"),
        (("step>5",), ""),
    ],
)
def test_the_rows_that_fulfil_every_condition_are_kept(written: tuple[str, ...], kept: str) -> None:
    assert "".join(one.name for one in conditions.keep(ROWS, written)) == kept


@pytest.mark.parametrize(
    ("written", "what", "fix"),
    [
        ("optim.lrr>1", "optim.lrr is no column", "did you mean optim.lr?"),
        ("stat=failed", "stat is no column", "did you mean state?"),
        ("qqqqqq=1", "qqqqqq is no column", "use one of these names"),
        ("optim.lr>fast", "fast is no number", "optim.lr=3"),
        ("optim.lr=nan", "nan is no number", "optim.lr=3"),
        ("optim.kind>adam", "optim.kind is no number: adamw", "compare with = or !="),
        ("model.compile>=true", "model.compile is no number: false", "compare with = or !="),
        ("failed", "it is no condition", "--where 'optim.lr>1e-4'"),
        ("__import__('os')=1", "it is no condition", "--where 'optim.lr>1e-4'"),
        ("=3", "it is no condition", "--where 'optim.lr>1e-4'"),
    ],
)
def test_a_condition_without_meaning_is_refused(written: str, what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        conditions.keep(ROWS, (written,))
    assert caught.value.what.startswith(what)
    assert caught.value.fix.startswith(fix)
    assert written in caught.value.where or written in caught.value.where.replace('"', "'")


def test_the_message_for_an_unknown_name_lists_columns_and_keys() -> None:
    with pytest.raises(UserError) as caught:
        conditions.sort(ROWS, "optim.learning_rate")
    assert "tokens_per_s" in caught.value.why
    assert "optim.clip_norm" in caught.value.why


@pytest.mark.parametrize(
    ("order", "names"), [("last", "abc"), ("-last", "bac"), ("optim.lr", "bac"), ("-name", "cba"), ("kind", "bac")]
)
def test_rows_are_sorted_and_those_without_the_value_stand_last(order: str, names: str) -> None:
    assert "".join(one.name for one in conditions.sort(ROWS, order)) == names


values = st.one_of(st.none(), st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=3), st.booleans())


@given(st.lists(values, max_size=8), st.booleans())
def test_any_values_can_be_sorted(found: list[object], down: bool) -> None:
    made = [row(str(place))._replace(config={"t": {"k": value}}) for place, value in enumerate(found)]
    if not made:
        return
    listed = [keys_of(one.config)["t.k"] for one in conditions.sort(made, "-t.k" if down else "t.k")]
    assert sorted(map(repr, listed)) == sorted(map(repr, found))
    assert all(value is None for value in listed[len(listed) - found.count(None) :])


@given(st.floats(allow_nan=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_kept_by_exactly_one_of_less_equal_and_more(value: float, limit: float) -> None:
    made = [row("one", last=value)]
    kept = [sign for sign in "<=>" if conditions.keep(made, (f"last{sign}{limit!r}",))]
    assert len(kept) == 1
    assert math.isinf(value) or (kept == ["="]) == (value == limit)
