"""Many rollouts at the same time: order, errors of the engine, and the end of the pool."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from prime_train.environments.load import open_environment
from prime_train.spec.rl import TaskSource
from prime_train.trainer.rl.engines.engine import EngineError
from prime_train.trainer.rl.rollouts.collect import Assignment
from prime_train.trainer.rl.rollouts.rollout import Rollout
from prime_train.trainer.rl.rollouts.rollout_queue import RolloutPool
from tests.unit.trainer.rl.chats import END, CharacterChat, FunctionEngine

SOURCE = TaskSource(kind="reverse-text")
ENVIRONMENT = open_environment(SOURCE, 7)


def assign(number: int) -> Assignment:
    return Assignment(
        environment=ENVIRONMENT, source=SOURCE, task=number, seed=1, answer_tokens=64, temperature=1.0, limit_s=30.0
    )


def test_as_many_rollouts_as_allowed_are_in_progress() -> None:
    together = threading.Barrier(4)
    engine = FunctionEngine(lambda _: str(together.wait(30)))  # returns only if four requests wait at once
    pool = RolloutPool(engine, CharacterChat(), concurrency=4)
    futures = [pool.submit(assign(number)) for number in range(8)]
    outcomes = [future.result(30) for future in futures]
    pool.close()
    assert [outcome.task for outcome in outcomes] == list(range(8))
    assert all(isinstance(outcome, Rollout) for outcome in outcomes)


def test_an_error_of_the_engine_is_the_exception_of_the_future() -> None:
    def fail(_: str) -> Any:
        raise EngineError("the server is gone")

    pool = RolloutPool(FunctionEngine(fail), CharacterChat(), concurrency=1)
    with pytest.raises(EngineError, match="gone"):
        pool.submit(assign(0)).result(30)
    pool.close()


def test_a_closed_pool_cancels_what_has_not_begun() -> None:
    begun, release = threading.Event(), threading.Event()

    def wait(_: str) -> str:
        begun.set()
        release.wait(30)
        return "x"

    pool = RolloutPool(FunctionEngine(wait), CharacterChat(), concurrency=1)
    first, second = pool.submit(assign(0)), pool.submit(assign(1))
    second.add_done_callback(lambda _: release.set())
    assert begun.wait(30)
    pool.close()
    assert second.cancelled()
    outcome = first.result(30)
    assert isinstance(outcome, Rollout)
    assert chr(outcome.tokens[-1]) == END
    with pytest.raises(ValueError, match="closed"):
        pool.submit(assign(2))
