"""Which rollouts belong to which step, over waits, stops, failures and restarts."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train import spec
from prime_train.environments.load import open_environments
from prime_train.spec import RunSpec
from prime_train.spec.rl import Rl, TaskSource
from prime_train.trainer.rl.engines.engine import EngineError
from prime_train.trainer.rl.rollouts.collect import Assignment
from prime_train.trainer.rl.rollouts.rollout import Failed, Outcome, Rollout
from prime_train.trainer.rl.rollouts.rollout_queue import RolloutQueue, RolloutWait
from tests.unit.trainer.rl.made_rollouts import rollout

GOES_ON = RolloutWait(lambda: False)
STOPS = RolloutWait(lambda: True)


def rl_run(max_behind_steps: int = 1, groups: int = 2) -> RunSpec:
    return RunSpec(
        run=spec.Run(name="tiny", kind="rl", max_steps=10, seed=7),
        data=spec.Data(sources=()),
        tasks=(TaskSource(kind="reverse-text"), TaskSource(kind="sort-digits")),
        rl=Rl(group_size=3, max_behind_steps=max_behind_steps),
        batch=spec.Batch(micro_batch=2, global_batch=3 * groups),
    )


class HeldPool:
    """Keeps assignments until the test finishes them."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.assignments: list[Assignment] = []
        self.futures: list[Future[Outcome]] = []

    def submit(self, assignment: Assignment) -> Future[Outcome]:
        self.assignments.append(assignment)
        self.futures.append(Future())
        return self.futures[-1]

    def finish(self, *places: int) -> None:
        """Finish these rollouts; without a place, all that are in progress."""
        for place in places or range(len(self.futures)):
            if not self.futures[place].done():
                self.futures[place].set_result(self.make(self.assignments[place]))

    def make(self, assignment: Assignment) -> Rollout:
        return replace(rollout(assignment.seed, version=self.version), task=assignment.task)


def key(assignment: Assignment) -> tuple[str, int, int]:
    return assignment.environment.name, assignment.task, assignment.seed


def queue_of(run: RunSpec, pool: HeldPool, position: dict[str, Any] | None = None) -> RolloutQueue:
    return RolloutQueue(run, open_environments(run.tasks, run.run.seed), pool, position)


def through_json(queue: RolloutQueue) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(queue.position()))
    return loaded


def test_the_groups_of_a_step_are_rollouts_of_one_task_each_in_order() -> None:
    pool = HeldPool()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 2)
    assert len(pool.assignments) == 12
    pool.finish(*reversed(range(12)))
    groups = queue.take(1, GOES_ON)
    assert groups is not None
    assert [len(group.outcomes) for group in groups] == [3, 3]
    taken = [outcome.task for group in groups for outcome in group.outcomes]
    assert taken == [assignment.task for assignment in pool.assignments[:6]]
    assert len({assignment.seed for assignment in pool.assignments}) == 12


def test_submitting_again_starts_only_what_is_not_started() -> None:
    pool = HeldPool()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 1)
    queue.submit(1, 2)
    queue.submit(1, 2)
    assert len(pool.assignments) == 12


def test_a_stop_ends_the_wait_and_loses_nothing() -> None:
    pool = HeldPool()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 1)
    pool.finish(0, 1)
    assert queue.take(1, STOPS) is None
    assert queue.waiting == 2
    pool.finish()
    assert queue.take(1, STOPS) is not None


def test_a_failed_engine_ends_the_wait_at_once() -> None:
    pool = HeldPool()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 1)
    pool.futures[3].set_exception(EngineError("it is gone"))
    with pytest.raises(EngineError, match="it is gone"):
        queue.finish(1, GOES_ON)


def test_a_wait_reports_the_finished_rollouts() -> None:
    pool, reports = HeldPool(), list[tuple[int, int]]()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 1)
    pool.finish(0)

    def report(finished: int, awaited: int) -> None:
        reports.append((finished, awaited))
        pool.finish()

    assert queue.finish(1, RolloutWait(lambda: False, report))
    assert reports == [(1, 6), (6, 6)]


@given(finished=st.sets(st.integers(0, 11)), failed=st.sets(st.integers(0, 11)))
def test_after_a_restart_only_unfinished_rollouts_start_again_and_are_the_same(
    finished: set[int], failed: set[int]
) -> None:
    run, pool = rl_run(), HeldPool()
    queue = queue_of(run, pool)
    queue.submit(1, 2)
    pool.finish(*(finished or {0}))
    for place in failed - (finished or {0}):
        pool.futures[place].set_result(Failed("reverse-text", pool.assignments[place].task, "it broke", "trace"))
    done = (finished or {0}) | failed
    again = HeldPool()
    restored = queue_of(run, again, through_json(queue))
    assert restored.waiting == len(done)
    restored.submit(1, 2)
    assert [key(each) for each in again.assignments] == [
        key(pool.assignments[place]) for place in range(12) if place not in done
    ]
    pool.finish()
    again.finish()
    for step in (1, 2):
        assert restored.take(step, GOES_ON) == queue.take(step, GOES_ON)
    queue.submit(3, 3)
    restored.submit(3, 3)
    assert [key(each) for each in again.assignments[-6:]] == [key(each) for each in pool.assignments[-6:]]


@pytest.mark.parametrize(("max_behind_steps", "kept"), [(0, 0), (1, 6), (2, 6)])
def test_rollouts_that_are_too_old_for_a_lower_bound_start_again(max_behind_steps: int, kept: int) -> None:
    pool = HeldPool(version=4)
    queue = queue_of(rl_run(), pool, None)
    queue.submit(5, 5)
    pool.finish()
    restored = queue_of(rl_run(max_behind_steps), HeldPool(), through_json(queue))
    assert restored.waiting == kept


def test_the_first_finished_rollouts_of_each_step_are_listed_in_order_and_by_their_weights() -> None:
    pool = HeldPool(version=3)
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 2)
    pool.futures[1].set_result(Failed("reverse-text", 1, "it broke"))
    pool.finish(9, 7, 2, 6)
    made = [pool.make(pool.assignments[place]) for place in (2, 6, 7, 9)]
    assert queue.list_finished(3, first=6) == made
    assert queue.list_finished(3, first=2) == made[1:3]  # two of the second step, of which 6 is the first
    assert queue.list_finished(2, first=6) == []


def test_only_the_first_rollouts_of_each_step_are_awaited() -> None:
    pool = HeldPool()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 2)
    pool.finish(0, 1, 6)
    assert not queue.finish(2, STOPS, first=2)
    pool.finish(7)
    assert queue.finish(2, STOPS, first=2)
    assert not queue.finish(2, STOPS)


def test_another_step_than_the_next_is_a_mistake_of_the_caller() -> None:
    pool = HeldPool()
    queue = queue_of(rl_run(), pool)
    queue.submit(1, 2)
    pool.finish()
    with pytest.raises(ValueError, match="step 1 are next"):
        queue.take(2, GOES_ON)


def test_another_temperature_is_that_of_the_steps_that_are_not_planned_yet() -> None:
    pool = HeldPool()
    run = rl_run()
    queue = queue_of(run, pool)
    queue.submit(1, 2)
    assert run.rl is not None
    queue.take_settings(replace(run, rl=replace(run.rl, temperature=0.5)))
    queue.submit(1, 3)
    assert [one.temperature for one in pool.assignments] == [1.0] * 12 + [0.5] * 6
    # What a restart starts again has the temperature of its step, whatever that of the config is.
    again = HeldPool()
    queue_of(run, again, through_json(queue)).submit(1, 3)
    assert [one.temperature for one in again.assignments] == [1.0] * 12 + [0.5] * 6
