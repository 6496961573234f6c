"""Trains on the rows of a `Work` in one flat loop, from the first step or a checkpoint to the last step or a stop.

A GPU has one step more in its queue than the loop has read, so that it is never without work while the loop reads,
writes the metrics and prepares the next step. What is saved, evaluated or reported as the end is always read first.
Shapes: B sequences, T positions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.events import Phase, TrainerStopped
from prime_train.spec import RunSpec
from prime_train.spec.answers import sequences_in_step
from prime_train.spec.run import lr_ratio
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.build import Ready, announce, join
from prime_train.trainer.evaluation.evaluate import Evaluation, measure_all
from prime_train.trainer.live_settings import open_settings
from prime_train.trainer.loops.after_step import (
    StepReader,
    UnreadStep,
    adjust,
    end_early,
    finish,
    is_due,
    probe_micro_batches,
)
from prime_train.trainer.loops.metrics import Metrics
from prime_train.trainer.loops.step import Votes, launch_step
from prime_train.trainer.loops.work import LoadWork, TrainRows, Work, load_chats, load_text


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Pretrain on text, fine-tune on chats, or train on clips."""
    train(attempt, stop, choose_load(attempt.run.run.kind))


def choose_load(kind: str) -> LoadWork:
    """What prepares the work for a kind. Raises UserError without the audio packages."""
    if kind != "audio":
        return load_chats if kind == "sft" else load_text
    try:
        from prime_train.trainer.loops.clip_work import load_audio  # which needs the extra
    except ModuleNotFoundError as error:
        why, fix = "the extra has the packages that decode clips", install_command("audio")
        raise UserError(f"{error.name} is not installed", 'run.kind = "audio"', why, fix) from error
    return load_audio


@dataclass(frozen=True, slots=True)
class OpenedWork:
    """The work of a run, with what it has opened for this attempt."""

    work: Work[Any]
    ready: Ready[Any]
    rows: TrainRows[Any]
    evaluations: tuple[Evaluation, ...]


def train(attempt: Attempt, stop: StopFlag, load: LoadWork) -> None:
    """Train until max_steps; when `stop` is requested, save a checkpoint and end early."""
    with stop.exit_on_stop(lambda: attempt.emit(TrainerStopped(attempt.number, attempt.resume_step))):
        opened = open_work(attempt, load)
    try:
        _train(attempt, opened, stop)
    finally:
        for evaluation in opened.evaluations:
            evaluation.close()


def open_work(attempt: Attempt, load: LoadWork) -> OpenedWork:
    device, world = join(attempt)
    attempt.emit(Phase(attempt.number, "data" if attempt.run.run.kind == "audio" else "tokenizer"))
    work = load(attempt.run, world)
    # The model before the rows: its checkpoint has the position at which they go on.
    ready = work.get_ready(attempt, device, world)
    attempt.emit(Phase(attempt.number, "data"))
    rows = work.open_rows(world.rank, world.size, ready.reached.data or None)
    _refuse_other_data(rows, world)
    return OpenedWork(work, ready, rows, work.open_evaluations(attempt, ready))


def _refuse_other_data(rows: TrainRows[Any], world: parallel.World) -> None:
    """UserError where the machines of a run do not have the same data. Called by every rank."""
    if world.machines > 1 and not world.agree(rows.position()):
        why = "each rank takes its part of one stream of documents, which every machine packs for itself"
        fix = "copy the same files to every machine, or name a dataset and a tokenizer of the Hugging Face hub"
        raise UserError("the machines of the run do not have the same data or tokenizer", "data.sources", why, fix)


def count_micro_batches(run: RunSpec, step: int, ranks: int) -> int:
    """The micro-batches of each rank in a step. Raises UserError where they do not make up its sequences."""
    sequences, unit = sequences_in_step(run, step), run.batch.micro_batch * ranks
    if sequences % unit:
        what = f"{sequences} sequences of step {step:,} do not divide by {run.batch.micro_batch} x {ranks} ranks"
        why = "the micro-batch is one that was changed live, and the step would have less data or none"
        fix = f"start it with processes for which {run.batch.micro_batch} x processes divides {sequences}"
        raise UserError(what, "batch.micro_batch", why, fix)
    return sequences // unit


def _train(attempt: Attempt, opened: OpenedWork, stop: StopFlag) -> None:
    work, ready, rows = opened.work, opened.ready, opened.rows
    training, checkpointer = ready.training, ready.checkpointer
    spans, behind_steps = training.spans, training.device.read_behind_steps
    live = open_settings(attempt, training.world, ready.reached.settings, behind_steps)
    metrics = Metrics(attempt, work.unit)
    reader = StepReader(attempt, ready, metrics, live, ready.reached)
    announce(attempt, training, ready.classes)
    step = ready.reached.step
    while step < live.attempt.run.run.max_steps:
        step += 1
        if live.has_changed(step):  # on every rank at this step
            training = adjust(training, live.attempt.run)
            rows.take_settings(live.attempt.run)
        run = live.attempt.run
        is_last = step >= run.run.max_steps
        saves = not is_last and is_due(step, run.checkpoint.interval_steps)
        evaluates = not is_last and is_due(step, run.eval.interval_steps)
        with spans.step(step):
            count = count_micro_batches(run, step, training.world.size)
            with spans.host_span("data"):
                began = time.perf_counter()
                micro_batches = [rows.next_micro_batch() for _ in range(count)]  # count times (B, T)
                data_s = time.perf_counter() - began
            lr = run.optim.lr * lr_ratio(run.schedule, step - 1, run.run.max_steps)
            training.spikes.leaves_out = step in run.optim.skip_steps
            launched = launch_step(
                training,
                micro_batches,
                lr,
                work.loss,
                votes=Votes(stop.is_requested(), live.has_next(), attempt.take_save_request()),
                before_update=checkpointer.before_update,
            )  # (8,), still on the device
            # The position is taken here, because the rows go on before the step is read.
            waited_s = {"data": data_s, "checkpoint": checkpointer.take_stall_s()}
            reader.add(UnreadStep(step, lr, launched, rows.position(), waited_s, live.position))
            # Only after the first update: before it the optimizer has no moments, and their memory is reserved too.
            if step == attempt.resume_step + 1:
                checkpointer.prepare(training.model, training.optimizer)
            # The position of a checkpoint has the tokens and spikes of its step, so that step must be read before.
            reader.read(leave=0 if saves or evaluates or is_last else behind_steps)
            # Every rank has read the same sum, so all save at the same step. The last step is saved after the loop.
            if reader.save and not is_last:
                saves = True
                reader.read()
            if saves and not reader.stop:
                reader.save = False
                # Before the evaluation, so that the checkpoint is written meanwhile.
                checkpointer.save(training.model, training.optimizer, reader.reached)
        # All ranks leave the loop at the same step, because each step adds up their stop requests.
        if reader.stop:
            break
        if evaluates:
            # The progress first: an evaluation may take minutes, and status would show an older step until then.
            metrics.flush()
            measure_all(live.attempt, training, step, opened.evaluations)
            attempt.emit(Phase(attempt.number, "train"))
    reader.read()  # after a stop, the step that was launched before the stop was known
    reached = reader.reached
    if spans.on and reached.step > ready.reached.step and not reader.stop:
        checkpointer.finish()  # its writer would slow the probe down
        probe_micro_batches(training, micro_batches[0], work.loss)
    spans.close()
    metrics.close()

    attempt.emit(Phase(attempt.number, "checkpoint"))
    # An attempt that was resumed at the last step has nothing that its checkpoint does not have.
    if reached.step > attempt.resume_step:
        checkpointer.save(training.model, training.optimizer, reached)
    if reader.stop:
        end_early(attempt, ready, reached.step)
    else:
        finish(live.attempt, ready, opened.evaluations, reached.step, reader.loss, work.export)
    parallel.leave(training.world)
