"""The order of tasks: continued at a position, and without a repeated task before all were posed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.rl.rollouts.rollout_queue import NextTask, TaskOrder
from tests.unit.trainer.rl.chats import Scripted


@dataclass
class Sized(Scripted):
    """An environment whose size is given."""


def open_order(sizes: list[int | None], seed: int, position: dict[str, int] | None = None) -> TaskOrder:
    return TaskOrder([Sized(size=size) for size in sizes], seed, position)


sizes = st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=4)


@given(sizes, st.integers(0, 2**32), st.integers(0, 60))
def test_a_position_continues_the_order(sizes: list[int | None], seed: int, taken: int) -> None:
    order = open_order(sizes, seed)
    for _ in range(taken):
        order.next_task()
    continued = open_order(sizes, seed, json.loads(json.dumps(order.position())))
    assert [order.next_task() for _ in range(20)] == [continued.next_task() for _ in range(20)]


@given(st.integers(1, 9), st.integers(0, 2**32))
def test_each_task_comes_once_per_epoch(size: int, seed: int) -> None:
    order = open_order([size, None], seed)
    tasks = [order.next_task() for _ in range(4 * size)]
    limited = [task.number for task in tasks if task.environment == 0]
    assert sorted(limited[:size]) == sorted(limited[size:]) == list(range(size))
    assert [task.number for task in tasks if task.environment == 1] == list(range(2 * size))


def test_environments_take_turns() -> None:
    order = open_order([None, None], 1)
    assert [order.next_task() for _ in range(3)] == [NextTask(0, 0, 0), NextTask(1, 0, 1), NextTask(0, 1, 2)]
