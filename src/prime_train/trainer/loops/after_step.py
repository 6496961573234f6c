"""What every loop does after a step, and after its last one: spikes, intervals, and the end of the run."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.events import Phase, StepSkipped, TrainerFinished, TrainerStopped
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.evaluation.evaluation import Evaluation, measure_all
from prime_train.trainer.loops.ready import Ready
from prime_train.trainer.loops.spikes import Spikes
from prime_train.trainer.loops.step import StepResult
from prime_train.trainer.saves.export import export


def report_spike(attempt: Attempt, spikes: Spikes, step: int, lr: float, result: StepResult) -> None:
    """Write an event where the step was skipped. Raises UserError where the run has to end."""
    if reason := spikes.record(step, lr, result):
        attempt.emit(StepSkipped(attempt.number, step, result.loss, result.grad_norm, reason))


def is_due(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0


def end_early(attempt: Attempt, ready: Ready, step: int) -> None:
    """End after a stop: `step` is the last one, and its checkpoint is being written."""
    # The event promises a checkpoint, so it is written when the checkpoint is complete.
    ready.checkpointer.finish()
    attempt.emit(TrainerStopped(attempt.number, step))


def finish(attempt: Attempt, ready: Ready, evaluations: Sequence[Evaluation], step: int, loss: float) -> None:
    """Evaluate while the last checkpoint is written, wait for it, and export the weights if configured.

    `loss`: that of the last step, for a run whose evaluations have none.
    """
    held_out_loss = measure_all(attempt, ready.training, step, evaluations)
    attempt.emit(Phase(attempt.number, "checkpoint"))
    ready.checkpointer.finish()
    final = attempt.run_dir.checkpoint(step)
    if attempt.run.checkpoint.final == "hf":
        attempt.emit(Phase(attempt.number, "export"))
        final = export(attempt, ready.training, ready.config, ready.tokenizer)
    reached_loss = loss if held_out_loss is None else held_out_loss
    attempt.emit(TrainerFinished(attempt.number, step, reached_loss, str(final)))
