"""The protocol of everything that a run measures beside its training loss, and the call that measures all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prime_train.events import Phase
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.loops.step import Training


class Evaluation(Protocol):
    """Held-out text, a set of eval.sets, the benchmarks, held-out tasks, or samples."""

    def measure(self, attempt: Attempt, training: Training, step: int) -> float | None:
        """Emit what the model after `step` reaches. Called by every rank.

        Returns the loss with which the run ends, in nats per token; None where the evaluation measures another thing.
        """
        ...

    def close(self) -> None:
        """End what it has started, such as the processes of its environments."""
        ...


def measure_all(attempt: Attempt, training: Training, step: int, evaluations: Sequence[Evaluation]) -> float | None:
    """Measure one after the other. Returns the last loss that one of them has; None where none has a loss."""
    attempt.emit(Phase(attempt.number, "evaluate"))
    with training.spans.host_span("evaluate"):
        # Each rank measures all of them in one order, because each may exchange tensors with the other ranks.
        losses = [evaluation.measure(attempt, training, step) for evaluation in evaluations]
    return next((loss for loss in reversed(losses) if loss is not None), None)
