"""Orders the rollouts of coming steps, collects them on threads, and hands out those of a step when all are finished.

The groups of step s are the next tasks of the order, and each rollout has a seed of its own from its step, group and
number. Both do not depend on time, so a rollout that starts again after a restart is the same rollout if it is
generated with the same weights. A checkpoint has the finished rollouts of coming steps; those in progress start again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Protocol

from prime_train.core.spans import Span, Spans
from prime_train.environments.environment import Environment
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, rl_settings
from prime_train.trainer import seed
from prime_train.trainer.draws import EPOCH, generator
from prime_train.trainer.rl.engines.engine import Engine
from prime_train.trainer.rl.rollouts.collect import Assignment, ChatTokens, LimitedCalls, Means, collect
from prime_train.trainer.rl.rollouts.groups import Group
from prime_train.trainer.rl.rollouts.rollout import Failed, Outcome, Rollout

_CLOSE_LIMIT_S = 5.0  # a thread that outlives it waits for an engine or an environment that hangs


class RolloutPool:
    """At most `concurrency` rollouts in progress. The threads are daemons: a hanging engine cannot keep the trainer."""

    def __init__(self, engine: Engine, chat: ChatTokens, concurrency: int) -> None:
        self._means = Means(engine, chat, LimitedCalls(), Spans("rollouts"))
        self._queue: SimpleQueue[tuple[Assignment, Future[Outcome], float] | None] = SimpleQueue()
        self._concurrency = concurrency
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, assignment: Assignment) -> Future[Outcome]:
        """The future outcome. An EngineError, and an error of the chat tokenizer, is the exception of the future."""
        if self._closed:
            raise ValueError("the pool is closed")
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(target=self._run, name=f"rollouts-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        outcome: Future[Outcome] = Future()
        self._queue.put((assignment, outcome, time.monotonic()))
        return outcome

    def close(self) -> None:
        """Cancel what has not begun, and wait for the threads: one that ends with the interpreter may abort it."""
        self._closed = True
        while not self._queue.empty():
            waiting = self._queue.get()
            if waiting is not None:
                waiting[1].cancel()
        for _ in self._threads:
            self._queue.put(None)
        until_s = time.monotonic() + _CLOSE_LIMIT_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._means.calls.close()
        self._means.spans.flush()

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            assignment, outcome, asked_s = waiting
            if not outcome.set_running_or_notify_cancel():
                continue
            self._means.spans.add(Span("queue", assignment.lane, asked_s, time.monotonic(), count=1))
            try:
                outcome.set_result(collect(assignment, self._means))
            except BaseException as error:  # handed to the trainer, which takes the outcome
                outcome.set_exception(error)


@dataclass(frozen=True, slots=True)
class NextTask:
    """The task with this number in `environments[environment]`. `place` counts all tasks of the order from 0."""

    environment: int
    number: int
    place: int


class TaskOrder:
    """Takes the environments in turn. A limited environment poses all tasks once, shuffled, before it repeats one."""

    def __init__(self, environments: Sequence[Environment], seed: int, position: dict[str, Any] | None = None) -> None:
        """`position`: of an earlier TaskOrder of the same environments, to continue after its last task."""
        self._sizes = [environment.size for environment in environments]
        self._seed = seed
        self._place = int(position["place"]) if position else 0

    def position(self) -> dict[str, Any]:
        return {"place": self._place}

    def next_task(self) -> NextTask:
        turn, which = divmod(self._place, len(self._sizes))
        size = self._sizes[which]
        number = turn
        if size is not None:
            epoch, within = divmod(turn, size)
            number = _permute(self._seed, which, epoch, size)[within]
        task = NextTask(which, number, self._place)
        self._place += 1
        return task


@lru_cache(maxsize=8)
def _permute(seed: int, source: int, epoch: int, count: int) -> list[int]:
    order: list[int] = generator(seed, EPOCH, source, epoch).permutation(count).tolist()
    return order


_CHECK_INTERVAL_S = 0.1  # of a stop request, while the trainer waits


class Pool(Protocol):
    """Collects rollouts in the background."""

    def submit(self, assignment: Assignment) -> Future[Outcome]:
        """The future outcome; its exception is an EngineError."""


@dataclass(frozen=True, slots=True)
class RolloutWait:
    """What a wait for rollouts looks at. `report` gets the numbers of finished and of awaited rollouts."""

    stop_requested: Callable[[], bool]
    report: Callable[[int, int], None] = lambda _finished, _awaited: None


@dataclass(slots=True)
class _Slot:
    """One rollout of a coming step."""

    assignment: Assignment
    outcome: Future[Outcome] | None = None  # None = it is not started


@dataclass(slots=True)
class _Batch:
    """The rollouts of one step, the groups one after the other."""

    step: int
    tasks: list[tuple[int, int]]  # (environment, number) of each group
    temperature: float  # for each rollout, whenever it starts
    slots: list[_Slot] = field(default_factory=list)


class RolloutQueue:
    """Rollouts of coming steps. One thread calls it. A wait raises EngineError if the engine has failed."""

    def __init__(
        self, run: RunSpec, environments: Sequence[Environment], pool: Pool, position: dict[str, Any] | None = None
    ) -> None:
        """`position`: of the queue of an earlier attempt, to continue after it."""
        self._run = run
        self._environments = environments
        self._pool = pool
        self._order = TaskOrder(environments, run.run.seed, position["order"] if position else None)
        self._batches = [self._restore(batch) for batch in position["batches"]] if position else []

    def take_settings(self, run: RunSpec) -> None:
        """Go on with the settings that change while the run trains: the temperature for steps not planned yet."""
        self._run = run

    @property
    def waiting(self) -> int:
        """Finished rollouts of coming steps."""
        return sum(_is_done(slot) for batch in self._batches for slot in batch.slots)

    def submit(self, first: int, last: int) -> None:
        """Start the rollouts of the steps up to `last` that are not started. `first`: the next step to be taken."""
        behind = self._batches[-1].step if self._batches else first - 1
        for step in range(behind + 1, last + 1):
            self._batches.append(self._plan(step))
        for slot in self._slots(last):
            if slot.outcome is None:
                slot.outcome = self._pool.submit(slot.assignment)

    def finish(self, step: int, waiting: RolloutWait, first: int | None = None) -> bool:
        """Wait for the rollouts up to `step`, or the `first` of each step. False if a stop was requested before."""
        pending = {slot.outcome for slot in self._slots(step, first) if slot.outcome is not None}
        awaited = len(pending)
        while pending:
            done, pending = wait(pending, _CHECK_INTERVAL_S, FIRST_EXCEPTION)
            for outcome in done:
                outcome.result()
            if pending and waiting.stop_requested():
                return False
            waiting.report(awaited - len(pending), awaited)
        return True

    def take(self, step: int, waiting: RolloutWait) -> tuple[Group, ...] | None:
        """The groups of `step`, which are the oldest; None if a stop was requested before all were finished."""
        if not self.finish(step, waiting):
            return None
        batch = self._batches.pop(0)
        if batch.step != step:
            raise ValueError(f"the rollouts of step {batch.step} are next, and step {step} was asked for")
        size = rl_settings(self._run).group_size
        outcomes = [slot.outcome.result() for slot in batch.slots if slot.outcome is not None]
        return tuple(Group(tuple(outcomes[start : start + size])) for start in range(0, len(outcomes), size))

    def list_finished(self, version: int, first: int) -> list[Rollout]:
        """Those of the `first` rollouts of each coming step that are finished and that `version` generated."""
        slots = self._slots(sys.maxsize, first)
        done = (slot.outcome.result() for slot in slots if slot.outcome and _is_done(slot))
        return [each for each in done if isinstance(each, Rollout) and each.version == version]

    def position(self) -> dict[str, Any]:
        """The next task and the finished rollouts of coming steps: JSON-able."""
        return {"order": self._order.position(), "batches": [_save(batch) for batch in self._batches]}

    def _slots(self, last: int, first: int | None = None) -> Iterator[_Slot]:
        """The rollouts of the steps up to `last`; with `first` only as many of each step."""
        return (slot for batch in self._batches if batch.step <= last for slot in batch.slots[:first])

    def _plan(self, step: int) -> _Batch:
        groups = global_batch(self._run) // rl_settings(self._run).group_size
        drawn = [self._order.next_task() for _ in range(groups)]
        temperature = rl_settings(self._run).temperature
        batch = _Batch(step, [(task.environment, task.number) for task in drawn], temperature)
        batch.slots = [_Slot(assignment) for assignment in self._assignments(batch)]
        return batch

    def _assignments(self, batch: _Batch) -> Iterator[Assignment]:
        policy, step = rl_settings(self._run), batch.step
        for group, (environment, number) in enumerate(batch.tasks):
            for member in range(policy.group_size):
                yield Assignment(
                    environment=self._environments[environment],
                    source=self._run.tasks[environment],
                    task=number,
                    seed=seed.mix(self._run.run.seed, "rollout", step, group, member),
                    answer_tokens=policy.answer_tokens,
                    temperature=batch.temperature,
                    limit_s=policy.rollout_limit_s,
                    lane=f"rollout-{step}-{group * policy.group_size + member}",
                )

    def _restore(self, saved: dict[str, Any]) -> _Batch:
        """A batch of a checkpoint. Rollouts that were in progress start again, and those that are too old."""
        tasks = [(int(environment), int(number)) for environment, number in saved["tasks"]]
        # A checkpoint from an earlier version has no temperature: it did not change then.
        batch = _Batch(int(saved["step"]), tasks, float(saved.get("temperature", rl_settings(self._run).temperature)))
        oldest = batch.step - rl_settings(self._run).max_behind_steps
        for assignment, values in zip(self._assignments(batch), saved["outcomes"], strict=True):
            outcome = _load_outcome(values, batch.temperature)
            usable = outcome is not None and (isinstance(outcome, Failed) or outcome.version >= oldest)
            batch.slots.append(_Slot(assignment, _done(outcome) if usable and outcome is not None else None))
        return batch


def _is_done(slot: _Slot) -> bool:
    return slot.outcome is not None and slot.outcome.done()


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


def _save(batch: _Batch) -> dict[str, Any]:
    done = [slot.outcome.result() if slot.outcome and _is_done(slot) else None for slot in batch.slots]
    outcomes = [{"failed": asdict(one)} if isinstance(one, Failed) else one and asdict(one) for one in done]
    return {"step": batch.step, "tasks": batch.tasks, "temperature": batch.temperature, "outcomes": outcomes}


def _load_outcome(values: dict[str, Any] | None, temperature: float) -> Outcome | None:
    if values is None:
        return None
    if "failed" in values:
        return Failed(**values["failed"])
    values = {"temperature": temperature} | values
    return Rollout(**values | {name: tuple(values[name]) for name in ("tokens", "sampled", "logprobs")})
