"""A cleanup plan keeps everything that a run could still need, and deletes the least useful kind first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.checkpoints.cleanup import (
    QUIET_S,
    Deletion,
    Keep,
    Kind,
    StoredItem,
    Wholeness,
    list_deletable,
    newest_usable,
    plan,
    reason_to_keep,
)

NOW_S = 1_790_000_000.0


def item(
    kind: Kind, step: int, wholeness: Wholeness = "complete", *, age_s: float = 10 * QUIET_S, pinned: bool = False
) -> StoredItem:
    return StoredItem(kind, step, (Path(kind) / f"step_{step}",), 100, wholeness, NOW_S - age_s, "", pinned)


def saved(*steps: int) -> list[StoredItem]:
    return [item("checkpoint", step) for step in steps]


def summarize(deletions: tuple[Deletion, ...]) -> list[tuple[str, int, bool]]:
    return [(one.item.kind, one.item.step, one.last_resort) for one in deletions]


# --- properties ------------------------------------------------------------------------------------

KINDS = st.sampled_from(["checkpoint", "weights", "broadcast", "rollouts"])
items = st.builds(
    StoredItem,
    KINDS,
    st.integers(1, 40),
    st.just(()),
    st.integers(0, 1000),
    st.sampled_from(["complete", "unfinished", "broken"]),
    st.sampled_from([NOW_S, NOW_S - 2 * QUIET_S]),
    st.just(""),
    st.booleans(),
    st.sampled_from(["", "", "process 12 on here"]),
).map(lambda one: replace(one, paths=(Path(one.kind) / f"step_{one.step}",)))
stocks = st.lists(items, max_size=30, unique_by=lambda one: one.paths)
keeps = st.builds(
    Keep,
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 10),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
    st.frozensets(st.integers(1, 40), max_size=3),
    st.integers(1, 4),
    st.booleans(),
)


@given(stock=stocks, keep=keeps)
def test_what_a_run_could_need_stays(stock: list[StoredItem], keep: Keep) -> None:
    gone = [one.item for one in list_deletable(stock, keep, NOW_S)]
    newest = newest_usable(stock, keep)
    for one in gone:
        assert not one.pinned
        assert not one.in_use
        assert one.step not in (keep.saving_step, keep.loading_step)
        if one.kind == "checkpoint" and one.complete:
            assert newest is not None
            assert one.step < newest.step
            assert not (keep.keep_every_steps and one.step % keep.keep_every_steps == 0)
        if one.kind == "checkpoint" and not one.complete:
            assert one.wholeness == "unfinished"
            assert not keep.writing or (newest is not None and one.step < newest.step)
        if one.kind == "rollouts":
            assert newest is not None
            assert one.step < newest.step


@given(stock=stocks, keep=keeps)
def test_two_whole_broadcasts_and_all_that_is_newer_stay(stock: list[StoredItem], keep: Keep) -> None:
    gone = {one.item.paths for one in list_deletable(stock, keep, NOW_S)}
    whole = sorted(one.step for one in stock if one.kind == "broadcast" and one.complete)
    for one in stock:
        if one.kind == "broadcast" and one.step >= (whole[-2] if len(whole) > 1 else 0):
            assert one.paths not in gone


@given(stock=stocks, keep=keeps)
def test_within_keep_last_is_the_last_resort(stock: list[StoredItem], keep: Keep) -> None:
    going = list_deletable(stock, keep, NOW_S)
    first = plan(going, 10**9, last_resort=False)
    usable = sorted(
        one.step
        for one in stock
        if one.kind == "checkpoint"
        and one.complete
        and one.step != keep.saving_step
        and one.step not in keep.unreadable
    )
    kept = usable if keep.keep_last is None else usable[-keep.keep_last :]
    assert not any(one.item.kind == "checkpoint" and one.item.complete and one.item.step in kept for one in first)
    assert [one.last_resort for one in going] == sorted(one.last_resort for one in going)


@given(stock=stocks, keep=keeps, wanted=st.integers(0, 5000))
def test_no_more_goes_than_is_wanted(stock: list[StoredItem], keep: Keep, wanted: int) -> None:
    chosen = plan(list_deletable(stock, keep, NOW_S), wanted, last_resort=True)
    assert sum(one.item.size_bytes for one in chosen[:-1]) < max(wanted, 1)


@given(stock=stocks, keep=keeps)
def test_what_was_planned_may_still_go_while_nothing_changes(stock: list[StoredItem], keep: Keep) -> None:
    for one in list_deletable(stock, keep, NOW_S):
        assert reason_to_keep(one, stock, keep, NOW_S) == ""


@given(stock=stocks, keep=keeps)
def test_when_all_of_it_has_gone_the_same_checkpoint_is_resumed(stock: list[StoredItem], keep: Keep) -> None:
    gone = {one.item.paths for one in list_deletable(stock, keep, NOW_S)}
    left = [one for one in stock if one.paths not in gone]
    assert newest_usable(left, keep) == newest_usable(stock, keep)


# --- examples --------------------------------------------------------------------------------------


def test_the_order_begins_with_what_is_missed_least() -> None:
    leftover = StoredItem("leftover", -1, (Path(".going-step_1.5"),), 1, "unfinished", NOW_S)
    stock = [
        *saved(10, 20, 30, 40),
        item("checkpoint", 15, "unfinished"),
        *(item("broadcast", step) for step in (11, 38, 39, 40, 41)),
        *(item("rollouts", step) for step in (12, 39, 41)),
        leftover,
    ]
    assert summarize(list_deletable(stock, Keep(keep_last=2), NOW_S)) == [
        ("leftover", -1, False),
        ("checkpoint", 15, False),
        ("broadcast", 11, False),
        ("broadcast", 38, False),
        ("broadcast", 39, False),
        ("checkpoint", 10, False),
        ("checkpoint", 20, False),
        ("rollouts", 12, False),
        ("rollouts", 39, False),
        ("checkpoint", 30, True),
    ]


def test_only_a_leftover_goes_where_nothing_is_wanted() -> None:
    leftover = StoredItem("leftover", -1, (Path(".going-step_1.5"),), 1, "unfinished", NOW_S)
    going = list_deletable([*saved(10, 20, 30), leftover], Keep(keep_last=1), NOW_S)
    assert summarize(plan(going, 0, last_resort=True)) == [("leftover", -1, False)]
    assert summarize(plan(going, 150, last_resort=False)) == [
        ("leftover", -1, False),
        ("checkpoint", 10, False),
        ("checkpoint", 20, False),
    ]


@pytest.mark.parametrize(("wanted_bytes", "count"), [(0, 0), (1, 1), (100, 1), (101, 2), (200, 2), (250, 3), (1000, 4)])
def test_a_plan_ends_with_the_deletion_that_frees_enough(wanted_bytes: int, count: int) -> None:
    going = list_deletable(saved(10, 20, 30, 40, 50), Keep(keep_last=1), NOW_S)
    assert plan(going, wanted_bytes, last_resort=False) == going[:count]


def test_what_an_interrupted_deletion_leaves_counts_as_freed() -> None:
    leftover = StoredItem("leftover", -1, (Path(".going-step_1.5"),), 60, "unfinished", NOW_S)
    going = list_deletable([*saved(10, 20, 30), leftover], Keep(keep_last=1), NOW_S)
    assert plan(going, 60, last_resort=False) == going[:1]
    assert plan(going, 61, last_resort=False) == going[:2]


def test_a_checkpoint_that_could_not_be_loaded_is_not_the_newest() -> None:
    keep = Keep(keep_last=1, unreadable=frozenset({30}))
    assert summarize(list_deletable(saved(10, 20, 30), keep, NOW_S)) == [("checkpoint", 10, False)]
    assert summarize(list_deletable(saved(10, 20, 30, 40), keep, NOW_S)) == [
        ("checkpoint", 10, False),
        ("checkpoint", 20, False),
        ("checkpoint", 30, False),
    ]


def test_a_checkpoint_that_is_written_again_is_none() -> None:
    assert summarize(list_deletable(saved(10, 20), Keep(keep_last=1, saving_step=20), NOW_S)) == []


def test_no_whole_checkpoint_goes_before_the_newest_has_been_loaded() -> None:
    assert list_deletable(saved(10, 20, 30), Keep(keep_last=1, loading_step=30), NOW_S) == ()


def test_an_unfinished_save_waits_until_it_is_quiet_and_superseded() -> None:
    young = item("checkpoint", 10, "unfinished", age_s=QUIET_S - 1)
    assert list_deletable([young, *saved(20)], Keep(), NOW_S) == ()
    assert summarize(list_deletable([young, *saved(20)], Keep(), NOW_S + 2)) == [("checkpoint", 10, False)]
    assert list_deletable([*saved(5), young], Keep(), NOW_S + 2) == ()
    assert summarize(list_deletable([*saved(5), young], Keep(writing=False), NOW_S)) == [("checkpoint", 10, False)]


@pytest.mark.parametrize(("age_s", "count"), [(QUIET_S - 1, 0), (QUIET_S, 1), (QUIET_S + 1, 1)])
@pytest.mark.parametrize("kind", ["checkpoint", "broadcast", "rollouts"])
def test_what_is_unfinished_is_quiet_after_a_time_without_a_change(kind: Kind, age_s: float, count: int) -> None:
    newer = [item("broadcast", step) for step in (30, 40)] if kind == "broadcast" else saved(20)
    young = item(kind, 10, "unfinished", age_s=age_s)
    assert summarize(list_deletable([young, *newer], Keep(), NOW_S)) == [(kind, 10, False)] * count


def test_an_unfinished_copy_of_the_newest_step_stays() -> None:
    copy = replace(item("checkpoint", 20, "unfinished"), paths=(Path("elsewhere/step_20"),))
    assert list_deletable([copy, *saved(20)], Keep(), NOW_S) == ()
    assert len(list_deletable([copy, *saved(20)], Keep(writing=False), NOW_S)) == 1


def test_every_deletion_has_a_reason_and_an_unfinished_save_its_own_problem() -> None:
    leftover = StoredItem("leftover", -1, (Path(".going-step_1.5"),), 1, "unfinished", NOW_S)
    torn = replace(item("checkpoint", 15, "unfinished"), problem="half of it is there")
    stock = [
        *saved(10, 20, 30, 40),
        leftover,
        torn,
        item("checkpoint", 16, "unfinished"),
        item("checkpoint", 12),
        *(item("broadcast", step) for step in (11, 38, 39)),
        *(item(kind, 9) for kind in ("weights", "rollouts")),
        *(item("weights", step) for step in (41, 42)),
    ]
    found = list_deletable(stock, Keep(keep_last=2, unreadable=frozenset({12})), NOW_S)
    assert {one.item.kind for one in found} == {"leftover", "checkpoint", "weights", "broadcast", "rollouts"}
    assert all(isinstance(one.reason, str) and one.reason for one in found)
    assert [one.reason for one in found if one.item == torn] == ["half of it is there"]


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (Keep(keep_last=1), [10, 20, 30]),
        (Keep(keep_last=1, keep_every_steps=20), [10, 30]),
        (Keep(keep_last=3), [10, 20, 30]),
        (Keep(keep_last=9), [10, 20, 30]),
        (Keep(), [10, 20, 30]),
        (Keep(keep_every_steps=30), [10, 20]),
        (Keep(keep_last=1, keep_every_steps=20, unreadable=frozenset({10, 20})), [10, 30]),
        (Keep(keep_last=1, unreadable=frozenset({40})), [10, 20]),
        (Keep(keep_last=1, saving_step=40), [10, 20]),
        (Keep(keep_last=1, loading_step=40), []),
    ],
)
def test_complete_checkpoints_that_may_go(keep: Keep, steps: list[int]) -> None:
    found = list_deletable(saved(10, 20, 30, 40), keep, NOW_S)
    assert sorted(one.item.step for one in found) == steps
    kept = keep.keep_last if keep.keep_last is not None else 4
    usable = [step for step in (10, 20, 30, 40) if step != keep.saving_step and step not in keep.unreadable]
    assert all(one.last_resort == (one.item.step in usable[-kept:]) for one in found)


@pytest.mark.parametrize(
    ("step", "loading_step", "goes"),
    [(9, None, True), (10, None, False), (11, None, False), (9, 5, False), (4, 5, True)],
)
def test_rollouts_before_the_checkpoint_of_a_resume_may_go(step: int, loading_step: int | None, goes: bool) -> None:
    stock = [*saved(10), item("rollouts", step)]
    assert len(list_deletable(stock, Keep(loading_step=loading_step), NOW_S)) == goes
    assert list_deletable(stock[1:], Keep(), NOW_S) == ()


@pytest.mark.parametrize(("broadcasts", "steps"), [(1, [10, 20]), (2, [10, 20]), (3, [10]), (4, []), (5, [])])
def test_broadcasts_that_an_engine_may_read_stay(broadcasts: int, steps: list[int]) -> None:
    stock = [item("broadcast", step) for step in (10, 20, 30, 40)]
    assert [one.item.step for one in list_deletable(stock, Keep(broadcasts=broadcasts), NOW_S)] == steps
    assert list_deletable(stock[:1], Keep(broadcasts=broadcasts), NOW_S) == ()


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (Keep(keep_last=1), [10, 30]),
        (Keep(keep_last=2), [10]),
        (Keep(), []),
        (Keep(keep_last=1, keep_every_steps=30), [10]),
    ],
)
def test_weights_of_steps_without_a_checkpoint_go(keep: Keep, steps: list[int]) -> None:
    weights = [item("weights", step) for step in (10, 20, 30, 40)]
    assert [one.item.step for one in list_deletable([*saved(20), *weights], keep, NOW_S)] == steps


def test_a_broken_one_is_left_to_look_at() -> None:
    assert list_deletable([item("checkpoint", 10, "broken"), *saved(20)], Keep(keep_last=1, writing=False), NOW_S) == ()


def test_the_broadcast_of_a_checkpoint_stays_with_it() -> None:
    broadcasts = [item("broadcast", step) for step in (10, 15, 20, 25, 30, 31)]
    stock = [*saved(10, 20), *broadcasts]
    assert summarize(list_deletable(stock, Keep(keep_last=2), NOW_S)) == [
        ("broadcast", 15, False),
        ("broadcast", 25, False),
        ("checkpoint", 10, True),
    ]


def test_exported_weights_go_after_their_checkpoint_and_never_as_a_last_resort() -> None:
    weights = [item("weights", step) for step in (10, 20, 30)]
    assert summarize(list_deletable([*saved(20, 30), *weights], Keep(keep_last=1), NOW_S)) == [
        ("checkpoint", 20, False),
        ("weights", 10, False),
    ]
    assert summarize(list_deletable([*saved(30), *weights], Keep(), NOW_S)) == []


def test_why_a_planned_deletion_is_not_done() -> None:
    (one,) = list_deletable(saved(10, 20), Keep(keep_last=1), NOW_S)
    keep = Keep(keep_last=1)
    pinned, used = replace(one.item, pinned=True), replace(one.item, in_use="process 12 on here")
    assert reason_to_keep(one, saved(10, 20), keep, NOW_S) == ""
    assert reason_to_keep(one, saved(20), keep, NOW_S) == "it is gone"
    assert reason_to_keep(one, [pinned, *saved(20)], keep, NOW_S) == "it is pinned"
    assert reason_to_keep(one, [used, *saved(20)], keep, NOW_S) == "process 12 on here uses it"
    assert reason_to_keep(one, saved(10), keep, NOW_S) == "it is needed again"
