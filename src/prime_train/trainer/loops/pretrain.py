"""Pretrains a language model in one flat loop, from the first step or a checkpoint to the last step or a stop.

A GPU has one step more in its queue than the loop has read, so that it is never without work while the loop reads,
writes the metrics and prepares the next step. What is saved, evaluated or reported as the end is always read first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from prime_train.core.errors import UserError
from prime_train.events import Phase, TrainerStopped
from prime_train.spec import RunSpec
from prime_train.spec.schedule import lr_ratio
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.build import announce, join
from prime_train.trainer.data import stream
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.data.stream import held_out_batches
from prime_train.trainer.data.tokenised import Share
from prime_train.trainer.evaluation.benchmarks.suite import open_suite
from prime_train.trainer.evaluation.evaluate import HeldOut, Samples
from prime_train.trainer.evaluation.evaluation import Evaluation, measure_all
from prime_train.trainer.evaluation.overlap import prepare_sets
from prime_train.trainer.loops.after_step import end_early, finish, is_due
from prime_train.trainer.loops.ready import Ready, get_ready
from prime_train.trainer.loops.step import launch_step, loss_sum
from prime_train.trainer.loops.step_reader import StepReader, UnreadStep
from prime_train.trainer.measure.metrics import Metrics
from prime_train.trainer.measure.probe import probe_micro_batches
from prime_train.trainer.rl.rollouts.task_targets import open_targets
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
        device, world = join(attempt)
        attempt.emit(Phase(attempt.number, "tokenizer"))
        material = load(attempt.run, world)
        ready = get_ready(attempt, material.tokenizer, device, world)
        attempt.emit(Phase(attempt.number, "data"))
        rows = material.open_rows(world.rank, world.size, ready.reached.data or None)
        _refuse_other_data(rows, world)
        evaluations = _open_evaluations(attempt, ready, material)
    try:
        _train(attempt, ready, rows, evaluations, stop)
    finally:
        for evaluation in evaluations:
            evaluation.close()


def _open_evaluations(attempt: Attempt, ready: Ready, material: Material) -> tuple[Evaluation, ...]:
    """Everything that the run measures, in its order."""
    run, tokenizer, world = attempt.run, material.tokenizer, ready.training.world
    targets = open_targets(attempt, tokenizer, ready.config, ready.training.device)
    held_out = HeldOut(material.held_out())
    sets = prepare_sets(run, tokenizer, world)
    suite = open_suite(run, tokenizer, world)
    samples = Samples(tokenizer, [list(material.encode_prompt(prompt)) for prompt in run.eval.prompts])
    return targets, *sets, suite, held_out, samples


def _refuse_other_data(rows: TrainRows, world: parallel.World) -> None:
    """UserError where the machines of a run do not have the same data. Called by every rank."""
    if world.machines > 1 and not world.agree(rows.position()):
        raise UserError(
            what="the machines of the run do not have the same data or tokenizer",
            where="data.sources",
            why="each rank takes its part of one stream of documents, which every machine packs for itself",
            fix="copy the same files to every machine, or name a dataset and a tokenizer of the Hugging Face hub",
        )


def _train(attempt: Attempt, ready: Ready, rows: TrainRows, evaluations: Sequence[Evaluation], stop: StopFlag) -> None:
    run, training, checkpointer = attempt.run, ready.training, ready.checkpointer
    spans, behind_steps = training.spans, training.device.read_behind_steps
    rows_at_once = run.batch.micro_batch * training.world.size
    metrics = Metrics(attempt)
    reader = StepReader(attempt, ready, metrics, ready.reached)
    announce(attempt, training, ready.config)
    for step in range(ready.reached.step + 1, run.run.max_steps + 1):
        is_last = step == run.run.max_steps
        saves = not is_last and is_due(step, run.checkpoint.interval_steps)
        evaluates = not is_last and is_due(step, run.eval.interval_steps)
        with spans.step(step):
            with spans.host_span("data"):
                micro_batches, data_s = _next_micro_batches(rows, run.sequences_of(step) // rows_at_once)
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
            reader.add(UnreadStep(step, lr, launched, rows.position(), waited_s))
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
            measure_all(attempt, training, step, evaluations)
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
        end_early(attempt, ready, reached.step)
    else:
        finish(attempt, ready, evaluations, reached.step, reader.loss)
    parallel.leave(training.world)


def _next_micro_batches(rows: TrainRows, count: int) -> tuple[list[Batch], float]:
    """The micro-batches of a step, and the seconds that the loop waited for them."""
    began = time.perf_counter()
    return [rows.next_micro_batch() for _ in range(count)], time.perf_counter() - began
