"""What the loops do after a step, and after the last one: read it, spikes, intervals, probes, the end of the run."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from prime_train.core.errors import UserError
from prime_train.events import Phase, StepSkipped, TrainerFinished, TrainerStopped
from prime_train.spec import RunSpec
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import Known, Ready, TextModel
from prime_train.trainer.evaluation.evaluate import Evaluation, measure_all
from prime_train.trainer.live_settings import LiveSettings
from prime_train.trainer.loops.metrics import Metrics, step_metrics
from prime_train.trainer.loops.spikes import Spikes, StepResult
from prime_train.trainer.loops.step import AnyBatch, LossSum, Training
from prime_train.trainer.muon import adjust_optimizer
from prime_train.trainer.saves.checkpoint import TrainPosition
from prime_train.trainer.saves.export import export

_PROBED_TIMES = (1, 2, 4, 8)
_LONGEST_PROBE_S = 5.0  # a larger micro-batch than this one is not tried
_PROBE_ROUNDS = 3


def report_spike(attempt: Attempt, spikes: Spikes, step: int, lr: float, result: StepResult) -> None:
    """Write an event where the step was skipped. Raises UserError where the run has to end."""
    try:
        reason = spikes.record(step, lr, result)
    except UserError as end:
        # The weights are as before here too. By this event the supervisor knows what the run ended for.
        attempt.emit(StepSkipped(attempt.number, step, result.loss, result.grad_norm, end.what))
        raise
    if reason:
        attempt.emit(StepSkipped(attempt.number, step, result.loss, result.grad_norm, reason))


def adjust(training: Training, run: RunSpec) -> Training:
    """The objects of the steps with the settings that change while a run trains."""
    adjust_optimizer(training.optimizer, run.optim)
    return replace(training, clip_norm=run.optim.clip_norm)


def is_due(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0


def end_early(attempt: Attempt, ready: Ready[Any], step: int) -> None:
    """End after a stop: `step` is the last one, and its checkpoint is being written."""
    # The event promises a checkpoint, so it is written when the checkpoint is complete.
    ready.checkpointer.finish()
    attempt.emit(TrainerStopped(attempt.number, step))


def export_text(attempt: Attempt, ready: Ready[TextModel]) -> Path:
    """Write the model and its tokenizer as a Hugging Face folder; returns its path. Every rank calls it."""
    return export(attempt, ready.training, ready.known.config, ready.known.tokenizer)


def finish(
    attempt: Attempt,
    ready: Ready[Known],
    evaluations: Sequence[Evaluation],
    step: int,
    loss: float,
    export_model: Callable[[Attempt, Ready[Known]], Path],
) -> None:
    """Evaluate while the last checkpoint is written, and export. `loss`: of the last step, where none is measured."""
    held_out_loss = measure_all(attempt, ready.training, step, evaluations)
    attempt.emit(Phase(attempt.number, "checkpoint"))
    ready.checkpointer.finish()
    final = attempt.run_dir.checkpoint(step)
    if attempt.run.checkpoint.final == "hf":
        attempt.emit(Phase(attempt.number, "export"))
        final = export_model(attempt, ready)
    reached_loss = loss if held_out_loss is None else held_out_loss
    attempt.emit(TrainerFinished(attempt.number, step, reached_loss, str(final)))


class StepToRead(Protocol):
    """A step whose numbers may still be computed."""

    def read(self) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """A launched step, with what its line of metrics needs."""

    step: int
    lr: float
    launched: StepToRead
    data: dict[str, Any]  # the position of the rows after it
    waited_s: Mapping[str, float]
    settings: list[dict[str, Any]]  # in force in it
    rate: dict[str, Any] = field(default_factory=dict)  # RateRamp.position
    more: Any = None  # a dataclass with further columns


@dataclass(slots=True)
class StepReader:
    """The steps that are launched and not read. `reached` and `loss` are those of the last step read."""

    attempt: Attempt
    ready: Ready[Any]
    metrics: Metrics
    live: LiveSettings
    reached: TrainPosition
    loss: float = math.nan
    stop: bool = False  # a stop was requested on at least one rank
    save: bool = False  # a checkpoint was requested, and is not saved yet
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
        spikes = training.spikes.position()
        self.reached = TrainPosition(one.step, tokens_seen, one.data, spikes, one.settings, one.rate)
        line = step_metrics(training, self.reached, result, one.lr, self.ready.flops_per_token, one.waited_s)
        self.metrics.add(line, result.expert_load, one.more)
        self.live.hear(one.step, result.ready_ranks)
        self.loss = result.loss
        self.stop = self.stop or result.stop
        self.save = self.save or result.save


def probe_micro_batches(training: Training, batch: AnyBatch, compute_loss: LossSum[AnyBatch]) -> None:
    """Write one span for each size that fits: the fastest of some forwards and backwards, without collectives.

    Each round runs every size once, so that a slower machine slows down all of them. No sharded model is measured, and
    no clips.
    """
    if parallel.is_sharded(training.model) or not _is_repeatable(batch):
        return
    rounds = [_run_sizes_that_fit(training, batch, compute_loss)]
    for _ in range(_PROBE_ROUNDS - 1):
        rounds.append({times: _run(training, _repeat(batch, times), compute_loss) for times in rounds[0]})
    for times in rounds[0]:
        began_s, end_s = min((each[times] for each in rounds), key=lambda interval: interval[1] - interval[0])
        training.spans.probe(times, began_s, end_s)


def _run_sizes_that_fit(
    training: Training, batch: AnyBatch, compute_loss: LossSum[AnyBatch]
) -> dict[int, tuple[float, float]]:
    """The interval of each size, up to the first one that takes long or leaves little memory."""
    found: dict[int, tuple[float, float]] = {}
    used_before = psutil.Process().memory_info().rss
    for times in _PROBED_TIMES:
        try:
            began_s, end_s = _run(training, _repeat(batch, times), compute_loss)
        except torch.OutOfMemoryError:
            training.optimizer.zero_grad(set_to_none=True)
            break
        found[times] = began_s, end_s
        grown_bytes = psutil.Process().memory_info().rss - used_before
        if end_s - began_s > _LONGEST_PROBE_S or 4 * grown_bytes > psutil.virtual_memory().available:
            break
    return found


def _run(training: Training, batch: AnyBatch, compute_loss: LossSum[AnyBatch]) -> tuple[float, float]:
    """When a forward and backward began and ended, in seconds of the monotonic clock. Discards the gradients."""
    model = parallel.unwrap(training.model)
    began_s = time.monotonic()
    loss = compute_loss(model, batch, training.device)  # ()
    (loss / batch.labelled_tokens).backward()  # type: ignore[no-untyped-call]
    if training.device.torch.type == "cuda":
        torch.cuda.synchronize(training.device.torch)
    end_s = time.monotonic()
    training.optimizer.zero_grad(set_to_none=True)
    return began_s, end_s


def _is_repeatable(batch: Any) -> bool:
    """Whether a batch has tensors with rows alone: what is drawn for clips belongs to these clips."""
    return all(isinstance(getattr(batch, field.name), torch.Tensor) for field in fields(batch))


def _repeat(batch: Any, times: int) -> Any:
    """The rows of a batch `times` times. A batch is a dataclass with tensors (B, ...)."""
    rows = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: tensor.repeat(times, *[1] * (tensor.dim() - 1)) for name, tensor in rows.items()})
