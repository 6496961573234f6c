"""Pretrains a language model in one flat loop, from the first step or a checkpoint to the last step or a stop.

A GPU has one step more in its queue than the loop has read, so that it is never without work while the loop reads,
writes the metrics and prepares the next step. What is saved, evaluated or reported as the end is always read first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from prime_train.core.errors import UserError
from prime_train.events import Phase, StepSkipped, TrainerFinished, TrainerStopped
from prime_train.spec import RunSpec
from prime_train.spec.answers import sequences_in_step
from prime_train.spec.schedule import lr_ratio
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.build import announce, join, load_config, set_up_training
from prime_train.trainer.data import stream
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.data.stream import held_out_batches
from prime_train.trainer.data.tokenised import Share
from prime_train.trainer.evaluation.benchmarks.suite import Suite, open_suite
from prime_train.trainer.evaluation.eval_sets import TextSet
from prime_train.trainer.evaluation.evaluate import evaluate
from prime_train.trainer.evaluation.overlap import prepare_sets
from prime_train.trainer.loops.spikes import Spikes
from prime_train.trainer.loops.step import LaunchedStep, StepResult, Training, launch_step, loss_sum
from prime_train.trainer.measure.metrics import Metrics, expert_metrics, step_metrics
from prime_train.trainer.measure.probe import probe_micro_batches
from prime_train.trainer.model.decoder import ModelConfig, flops_per_token
from prime_train.trainer.rl.rollouts.task_targets import TaskTargets, open_targets
from prime_train.trainer.run_tokenizer import check_tokenizer, keep_tokenizer
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from prime_train.trainer.saves.export import export
from prime_train.trainer.tokenizer import Tokenizer, load_tokenizer


class TrainRows(Protocol):
    """The micro-batches of one rank, in an order that depends only on the seed."""

    def next_micro_batch(self) -> Batch: ...

    def position(self) -> dict[str, Any]:
        """The position after the rows that all ranks have used: JSON-able, the same on every rank."""
        ...


@dataclass(frozen=True, slots=True)
class Material:
    """What a kind of run trains on. Rank 0 prepares it; the other ranks read what it cached."""

    tokenizer: Tokenizer
    open_rows: Callable[[int, int, dict[str, Any] | None], TrainRows]  # (rank, ranks, position of an earlier attempt)
    held_out: Callable[[], list[Batch]]
    encode_prompt: Callable[[str], Sequence[int]]  # of eval.prompts


LoadMaterial = Callable[[RunSpec, parallel.World], Material]


@dataclass(frozen=True, slots=True)
class _Ready:
    """Everything that the loop needs, set up once."""

    training: Training
    config: ModelConfig
    tokenizer: Tokenizer
    encode_prompt: Callable[[str], Sequence[int]]
    rows: TrainRows
    held_out: list[Batch]
    reached: TrainPosition
    flops_per_token: float
    targets: TaskTargets
    sets: tuple[TextSet, ...] = ()
    benchmarks: Suite = field(default_factory=Suite)


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Pretrain on text."""
    train(attempt, stop, load_text)


def load_text(run: RunSpec, world: parallel.World) -> Material:
    """The packed documents of data.sources."""
    tokenizer = world.load_in_turn(partial(stream.prepare, run)) or load_tokenizer(run)
    return Material(
        tokenizer,
        partial(stream.TrainStream, run, tokenizer, share=Share(world.local_rank, world.local_size)),
        partial(held_out_batches, run, tokenizer),
        encode_prompt=tokenizer.encode if run.data.document_start == "none" else partial(_encode_start, tokenizer),
    )


def _encode_start(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt as the beginning of a document."""
    return [tokenizer.eos_id, *tokenizer.encode(prompt)]


def train(attempt: Attempt, stop: StopFlag, load: LoadMaterial) -> None:
    """Train until max_steps; when `stop` is requested, save a checkpoint and end early."""
    with stop.exit_on_stop(lambda: attempt.emit(TrainerStopped(attempt.number, attempt.resume_step))):
        ready = _set_up(attempt, load)
    try:
        _train(attempt, ready, stop)
    finally:
        ready.targets.close()


def _set_up(attempt: Attempt, load: LoadMaterial) -> _Ready:
    run = attempt.run
    device, world = join(attempt)
    attempt.emit(Phase(attempt.number, "tokenizer"))
    material = load(run, world)
    keep_tokenizer(attempt, material.tokenizer)
    check_tokenizer(attempt, material.tokenizer)
    config = load_config(run, material.tokenizer)
    training, reached = set_up_training(attempt, config, device, world)

    attempt.emit(Phase(attempt.number, "data"))
    rows = material.open_rows(world.rank, world.size, reached.data or None)
    _refuse_other_data(rows, world)
    flops = flops_per_token(config, run.data.ctx_tokens)
    targets = open_targets(attempt, material.tokenizer, config, device)
    held_out, encode = material.held_out(), material.encode_prompt
    sets = prepare_sets(run, material.tokenizer, world)
    suite = open_suite(run, material.tokenizer, world)
    return _Ready(training, config, material.tokenizer, encode, rows, held_out, reached, flops, targets, sets, suite)


def _refuse_other_data(rows: TrainRows, world: parallel.World) -> None:
    """UserError where the machines of a run do not have the same data. Called by every rank."""
    if world.machines > 1 and not world.agree(rows.position()):
        raise UserError(
            what="the machines of the run do not have the same data or tokenizer",
            where="data.sources",
            why="each rank takes its part of one stream of documents, which every machine packs for itself",
            fix="copy the same files to every machine, or name a dataset and a tokenizer of the Hugging Face hub",
        )


@dataclass(frozen=True, slots=True)
class _Unread:
    """A launched step, with what its line of metrics needs."""

    step: int
    lr: float
    launched: LaunchedStep
    data: dict[str, Any]  # the position of the rows after it
    waited_s: Mapping[str, float]


@dataclass(slots=True)
class _Reader:
    """Reads the launched steps in their order, and writes what each has measured."""

    attempt: Attempt
    ready: _Ready
    metrics: Metrics
    reached: TrainPosition  # of the last step that was read
    stop: bool = False  # a stop was requested on at least one rank
    _unread: deque[_Unread] = field(default_factory=deque)

    def add(self, launched: _Unread) -> None:
        self._unread.append(launched)

    def read(self, leave: int = 0) -> None:
        """Read the oldest steps, up to the last `leave` ones. Raises UserError where the run has to end."""
        while len(self._unread) > leave:
            one = self._unread.popleft()
            self._record(one, one.launched.read())

    def _record(self, one: _Unread, result: StepResult) -> None:
        training = self.ready.training
        report_spike(self.attempt, training.spikes, one.step, one.lr, result)
        tokens_seen = self.reached.tokens_seen + result.tokens
        self.reached = TrainPosition(one.step, tokens_seen, one.data, training.spikes.position())
        line = step_metrics(training, self.reached, result, one.lr, self.ready.flops_per_token, one.waited_s)
        self.metrics.add(line, expert_metrics(result.expert_load))
        self.stop = self.stop or result.stop


def _train(attempt: Attempt, ready: _Ready, stop: StopFlag) -> None:
    run, training, rows = attempt.run, ready.training, ready.rows
    spans, behind_steps = training.spans, training.device.read_behind_steps
    rows_at_once = run.batch.micro_batch * training.world.size
    checkpointer = Checkpointer(attempt, training.world, training.device.torch)
    metrics = Metrics(attempt)
    reader = _Reader(attempt, ready, metrics, ready.reached)
    announce(attempt, training, ready.config)
    for step in range(ready.reached.step + 1, run.run.max_steps + 1):
        is_last = step == run.run.max_steps
        saves = not is_last and is_due(step, run.checkpoint.interval_steps)
        evaluates = not is_last and is_due(step, run.eval.interval_steps)
        with spans.step(step):
            with spans.host_span("data"):
                micro_batches, data_s = _next_micro_batches(rows, sequences_in_step(run, step) // rows_at_once)
            lr = run.optim.lr * lr_ratio(run.schedule, step - 1, run.run.max_steps)
            launched = launch_step(
                training,
                micro_batches,
                lr,
                loss_sum,
                stop_requested=stop.is_requested(),
                before_update=checkpointer.before_update,
            )
            waited_s = {"data": data_s, "checkpoint": checkpointer.take_stall_s()}
            reader.add(_Unread(step, lr, launched, rows.position(), waited_s))
            if step == attempt.resume_step + 1:
                checkpointer.prepare(training.model, training.optimizer)
            # The position of a checkpoint has the tokens and spikes of its step, so that step must be read before.
            reader.read(leave=0 if saves or evaluates or is_last else behind_steps)
            if saves and not reader.stop:
                # Before the evaluation, so that the checkpoint is written meanwhile.
                checkpointer.save(training.model, training.optimizer, reader.reached)
        if reader.stop:
            break
        if evaluates:
            metrics.flush()
            with spans.host_span("evaluate"):
                _evaluate(attempt, ready, step)
            attempt.emit(Phase(attempt.number, "train"))
    reader.read()  # after a stop, the step that was launched before the stop was known
    reached = reader.reached
    if spans.on and reached.step > ready.reached.step and not reader.stop:
        checkpointer.finish()  # its writer would slow the probe down
        probe_micro_batches(training, micro_batches[0])
    spans.close()
    metrics.close()

    attempt.emit(Phase(attempt.number, "checkpoint"))
    if reached.step > attempt.resume_step:
        checkpointer.save(training.model, training.optimizer, reached)
    if reader.stop:
        checkpointer.finish()
        attempt.emit(TrainerStopped(attempt.number, reached.step))
    else:
        _finish(attempt, ready, checkpointer, reached.step)
    parallel.leave(training.world)


def _next_micro_batches(rows: TrainRows, count: int) -> tuple[list[Batch], float]:
    """The micro-batches of a step, and the seconds that the loop waited for them."""
    began = time.perf_counter()
    return [rows.next_micro_batch() for _ in range(count)], time.perf_counter() - began


def _evaluate(attempt: Attempt, ready: _Ready, step: int) -> float:
    attempt.emit(Phase(attempt.number, "evaluate"))
    ready.targets.evaluate(attempt, ready.training, step)
    for text_set in ready.sets:
        text_set.measure(attempt, ready.training, step)
    ready.benchmarks.evaluate(attempt, ready.training, step)
    prompts = [list(ready.encode_prompt(prompt)) for prompt in attempt.run.eval.prompts]
    return evaluate(ready.training, ready.tokenizer, ready.held_out, attempt, step, prompts)


def _finish(attempt: Attempt, ready: _Ready, checkpointer: Checkpointer, step: int) -> None:
    """Evaluate while the last checkpoint is written, wait for it, and export the weights if configured."""
    loss = _evaluate(attempt, ready, step)
    attempt.emit(Phase(attempt.number, "checkpoint"))
    checkpointer.finish()
    final = attempt.run_dir.checkpoint(step)
    if attempt.run.checkpoint.final == "hf":
        attempt.emit(Phase(attempt.number, "export"))
        final = export(attempt, ready.training, ready.config, ready.tokenizer)
    attempt.emit(TrainerFinished(attempt.number, step, loss, str(final)))


def report_spike(attempt: Attempt, spikes: Spikes, step: int, lr: float, result: StepResult) -> None:
    """Write an event where the step was skipped. Raises UserError where the run has to end."""
    if reason := spikes.record(step, lr, result):
        attempt.emit(StepSkipped(attempt.number, step, result.loss, result.grad_norm, reason))


def is_due(step: int, interval_steps: int | None) -> bool:
    return interval_steps is not None and step % interval_steps == 0
