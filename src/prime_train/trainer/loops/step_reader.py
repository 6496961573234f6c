"""Reads launched steps in their order, and writes what each has measured. Launches none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_train.trainer.attempt import Attempt
from prime_train.trainer.loops.after_step import report_spike
from prime_train.trainer.loops.ready import Ready
from prime_train.trainer.loops.step import LaunchedStep, StepResult
from prime_train.trainer.measure.metrics import Metrics, expert_metrics, step_metrics
from prime_train.trainer.saves.checkpoint import TrainPosition


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """A launched step, with what its line of metrics needs."""

    step: int
    lr: float
    launched: LaunchedStep
    data: dict[str, Any]  # the position of the rows after it
    waited_s: Mapping[str, float]


@dataclass(slots=True)
class StepReader:
    """The steps that are launched and not read. `reached`, `loss` and `stop` are those of the last step read."""

    attempt: Attempt
    ready: Ready
    metrics: Metrics
    reached: TrainPosition
    loss: float = math.nan
    stop: bool = False  # a stop was requested on at least one rank
    _unread: deque[UnreadStep] = field(default_factory=deque)

    def add(self, unread: UnreadStep) -> None:
        self._unread.append(unread)

    def read(self, leave: int = 0) -> None:
        """Read the oldest steps, up to the last `leave` ones. Raises UserError where the run has to end."""
        while len(self._unread) > leave:
            one = self._unread.popleft()
            self._record(one, one.launched.read())

    def _record(self, one: UnreadStep, result: StepResult) -> None:
        training = self.ready.training
        # First of all: a loss that ends the run has no line of metrics and no place in a checkpoint.
        report_spike(self.attempt, training.spikes, one.step, one.lr, result)
        tokens_seen = self.reached.tokens_seen + result.tokens
        # One value, so that a checkpoint never has the tokens of one step and the rows of another.
        self.reached = TrainPosition(one.step, tokens_seen, one.data, training.spikes.position())
        line = step_metrics(training, self.reached, result, one.lr, self.ready.flops_per_token, one.waited_s)
        self.metrics.add(line, expert_metrics(result.expert_load))
        self.loss = result.loss
        self.stop = self.stop or result.stop
