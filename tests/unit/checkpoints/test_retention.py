"""Retention lets go of what is superseded and of nothing a run could need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.checkpoints.cleanup import find_superseded
from prime_train.checkpoints.layout import SavedCheckpoint


def checkpoint(step: int, complete: bool = True, pinned: bool = False) -> SavedCheckpoint:
    problem = "" if complete else "no COMPLETE.json: the save did not finish"
    return SavedCheckpoint(step, f"step_{step}", 1, problem, pinned)


histories = st.dictionaries(st.integers(1, 60), st.tuples(st.booleans(), st.booleans()), max_size=20).flatmap(
    lambda known: st.permutations([checkpoint(step, *flags) for step, flags in known.items()])
)
cadences = st.none() | st.integers(1, 20)


@given(known=histories, keep_last=st.integers(1, 6), keep_every_steps=cadences)
def test_what_a_run_could_need_is_kept(
    known: list[SavedCheckpoint], keep_last: int, keep_every_steps: int | None
) -> None:
    gone = find_superseded(known, keep_last, keep_every_steps)
    complete = sorted((found for found in known if found.complete), key=lambda found: found.step)
    assert all(found.complete and not found.pinned for found in gone)
    assert not set(gone) & set(complete[-keep_last:])
    if keep_every_steps:
        assert all(found.step % keep_every_steps for found in gone)


@given(known=histories, keep_last=st.integers(1, 6), keep_every_steps=cadences)
def test_all_else_that_is_complete_goes(
    known: list[SavedCheckpoint], keep_last: int, keep_every_steps: int | None
) -> None:
    left = set(known) - set(find_superseded(known, keep_last, keep_every_steps))
    free = [found for found in left if found.complete and not found.pinned]
    rest = [found for found in free if not (keep_every_steps and found.step % keep_every_steps == 0)]
    assert len(rest) <= keep_last


@given(known=histories, keep_last=st.integers(1, 6), keep_every_steps=cadences)
def test_a_second_look_finds_nothing_more(
    known: list[SavedCheckpoint], keep_last: int, keep_every_steps: int | None
) -> None:
    left = set(known) - set(find_superseded(known, keep_last, keep_every_steps))
    assert find_superseded(left, keep_last, keep_every_steps) == []


def test_oldest_first() -> None:
    known = [checkpoint(step) for step in (30, 10, 20, 40)]
    assert [found.step for found in find_superseded(known, 2, None)] == [10, 20]
    assert [found.step for found in find_superseded(known, 1, 20)] == [10, 30]
