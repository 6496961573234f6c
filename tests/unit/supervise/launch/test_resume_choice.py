"""An attempt resumes from the newest checkpoint that can be loaded, and restarts only where little is lost."""

from __future__ import annotations

import pytest

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.spec import ENDLESS_STEPS, Checkpoint, Data, Run, RunSpec
from prime_train.spec.command import CommandSpec
from prime_train.supervise.launch.run_directory import choose_checkpoint, find_newest_complete, would_lose_checkpoints


def checkpoint(step: int, problem: str = "") -> SavedCheckpoint:
    return SavedCheckpoint(step, f"step_{step}", 1, problem)


@pytest.mark.parametrize(
    ("newest_first", "unreadable", "step", "rejected_steps"),
    [
        ([], set(), 0, []),
        ([checkpoint(30)], set(), 30, []),
        ([checkpoint(30), checkpoint(20)], set(), 30, []),
        ([checkpoint(30, "torn"), checkpoint(20)], set(), 20, [30]),
        ([checkpoint(30), checkpoint(20)], {30}, 20, [30]),
        ([checkpoint(30), checkpoint(20)], {20}, 30, []),
        ([checkpoint(30, "torn"), checkpoint(20)], {20}, 0, [30, 20]),
        ([checkpoint(30, "torn"), checkpoint(20, "torn")], {30}, 0, [30, 20]),
    ],
)
def test_the_newest_complete_and_readable_one_is_chosen(
    newest_first: list[SavedCheckpoint], unreadable: set[int], step: int, rejected_steps: list[int]
) -> None:
    chosen, rejected = choose_checkpoint(newest_first, unreadable)
    assert chosen == step
    assert [line.partition(":")[0] for line in rejected] == [f"step_{number}" for number in rejected_steps]
    assert all(line.partition(": ")[2] for line in rejected)


def test_a_rejected_one_keeps_its_own_problem() -> None:
    assert choose_checkpoint([checkpoint(30, "torn")], {30})[1] == ("step_30: torn",)


def test_the_newest_complete_one_need_not_be_the_newest() -> None:
    assert find_newest_complete([]) is None
    assert find_newest_complete([checkpoint(30, "torn")]) is None
    assert find_newest_complete([checkpoint(30, "torn"), checkpoint(20), checkpoint(10)]) == checkpoint(20)


@pytest.mark.parametrize(
    ("steps", "interval_steps", "much"),
    [
        ([], 10, False),
        ([], None, False),
        ([9], 10, False),
        ([10], 10, False),
        ([11], 10, True),
        ([11, 3], 10, True),
        ([1], None, True),
        ([1], 0, True),
    ],
)
def test_more_than_one_interval_is_much_to_lose(steps: list[int], interval_steps: int | None, much: bool) -> None:
    run = RunSpec(
        run=Run(name="a", max_steps=20), data=Data(sources=()), checkpoint=Checkpoint(interval_steps=interval_steps)
    )
    assert would_lose_checkpoints([checkpoint(step, "torn") for step in steps], run) is much


@pytest.mark.parametrize(("steps", "much"), [([], False), ([900], False), ([900, 450], True)])
def test_the_first_save_of_a_command_may_be_lost(steps: list[int], much: bool) -> None:
    run = RunSpec(
        run=Run(name="a", kind="command", max_steps=ENDLESS_STEPS),
        data=Data(sources=()),
        command=CommandSpec(argv=("train",)),
    )
    assert would_lose_checkpoints([checkpoint(step, "torn") for step in steps], run) is much
