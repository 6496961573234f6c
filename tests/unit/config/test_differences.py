"""`list_differences` and `diff`: values that differ, by their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prime_train.config.differences import Difference, diff, flatten, is_same, list_differences, plain, values_of
from prime_train.spec import Run, RunSpec
from prime_train.spec.data import Data, Source
from prime_train.spec.rl import TaskSource
from tests.unit.config.applied import apply

_RUN = RunSpec(run=Run(name="a", max_steps=10), data=Data(sources=(Source(kind="files", path="a.txt"),)))


def test_a_run_does_not_differ_from_itself() -> None:
    assert list_differences(_RUN, _RUN) == ()


def test_a_value_below_a_table_and_one_below_a_list_are_named() -> None:
    other = replace(
        _RUN,
        optim=replace(_RUN.optim, lr=1e-5),
        data=replace(_RUN.data, sources=(replace(_RUN.data.sources[0], path="b.txt"),)),
    )
    assert set(list_differences(_RUN, other)) == {
        Difference("optim.lr", _RUN.optim.lr, 1e-5),
        Difference("data.sources.0.path", "a.txt", "b.txt"),
    }


def test_an_entry_that_only_one_side_has_is_none_on_the_other() -> None:
    found = list_differences(_RUN, replace(_RUN, data=replace(_RUN.data, sources=())))
    assert Difference('data.sources."a.txt".path', "a.txt", None) in found
    assert Difference("data.sources", ("a.txt",), ()) in found


def test_keys_are_those_of_a_run_toml() -> None:
    changed = replace(_RUN, checkpoint=replace(_RUN.checkpoint, async_save=False))
    assert list_differences(_RUN, changed) == (Difference("checkpoint.async", True, False),)
    assert flatten(_RUN)["data.sources.0.path"] == "a.txt"


def test_an_entry_that_moved_is_the_same_entry() -> None:
    first, second = {"name": "a", "weight": 1}, {"name": "b", "weight": 2}
    before, after = {"sources": (first, second)}, {"sources": (second | {"weight": 3}, first)}
    assert diff(before, after) == (
        Difference("sources.b.weight", 2, 3),
        Difference("sources", ("a", "b"), ("b", "a")),
    )


def test_numbers_are_compared_by_value_and_true_is_no_number() -> None:
    assert diff({"a": 1, "b": float("nan"), "c": (1, 2)}, {"a": 1.0, "b": float("nan"), "c": (1.0, 2.0)}) == ()
    assert diff({"a": 1}, {"a": True}) == (Difference("a", 1, True),)


# --- diff(a, b) applied to a gives b ---------------------------------------------------------------

_SCALARS = st.one_of(st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(["", "a", "b", "0", "a.b"]))
_KEYS = st.sampled_from(["name", "path", "a", "b", "0", "1", "a.b", 'q"'])
_VALUES = st.recursive(
    _SCALARS,
    lambda below: st.one_of(
        st.dictionaries(_KEYS, below, max_size=3),
        st.lists(st.dictionaries(_KEYS, below, max_size=3), max_size=3),
        st.lists(below, max_size=3),
    ),
    max_leaves=12,
)
_ENTRIES = st.lists(st.sampled_from([{}, {"name": "a"}, {"name": "b"}, {"name": "a", "x": 1}, {"y": 1}]), max_size=3)
_TABLES = st.dictionaries(_KEYS, _VALUES | _ENTRIES, max_size=4)


@given(_TABLES, _TABLES)
def test_the_differences_of_two_tables_lead_from_one_to_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    old, new = plain(before), plain(after)
    found = diff(old, new)
    assert is_same(apply(old, found), new)
    assert (found == ()) == is_same(old, new)


_PATHS = st.sampled_from(["a.txt", "b.txt", "c.txt"])
_SOURCES = st.lists(st.builds(Source, kind=st.just("files"), path=_PATHS, count=st.integers(1, 3)), max_size=3)
_TASKS = st.lists(st.builds(TaskSource, kind=st.just("reverse-text"), id=st.none() | _PATHS), max_size=3)


@st.composite
def _runs(draw: st.DrawFn) -> RunSpec:
    return replace(
        _RUN,
        run=Run(name=draw(_PATHS), max_steps=draw(st.integers(1, 9))),
        data=Data(sources=tuple(draw(_SOURCES)), ctx_tokens=draw(st.integers(1, 9))),
        optim=replace(_RUN.optim, lr=draw(st.floats(1e-6, 1)), clip_norm=draw(st.none() | st.floats(0.5, 2))),
        tasks=tuple(draw(_TASKS)),
    )


@given(_runs(), _runs())
def test_the_differences_of_two_runs_lead_from_one_to_the_other(before: RunSpec, after: RunSpec) -> None:
    found = list_differences(before, after)
    assert is_same(apply(values_of(before), found), values_of(after))
    assert (found == ()) == is_same(values_of(before), values_of(after))
