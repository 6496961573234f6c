"""A training loop without torch: the state of a step is a hash of the state before it.

It loads, saves, stops and reports as the loops of `prime_train.trainer` do, with the same modules where these do not
import torch. FUZZ_STEP_S is the duration of a step in seconds.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.checkpoints.packing.archive import DamagedError
from prime_train.core.errors import UserError
from prime_train.events import (
    CheckpointSaved,
    CheckpointStarted,
    CheckpointUnreadable,
    Phase,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
)
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.loops.metrics import Metrics, StepMetrics
from prime_train.trainer.saves.checkpoint_removal import clear_unfinished, delete_superseded, make_room

SHARD, INDEX = "__0_0.distcp", ".metadata"
_WORDS = 2048  # of 32 bytes: enough for a checkpoint to be packed in more than one piece


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Train until max_steps; when `stop` is requested, save a checkpoint and end early."""
    number, start = attempt.number, attempt.resume_step
    with stop.exit_on_stop(lambda: attempt.emit(TrainerStopped(number, start))):
        attempt.emit(Phase(number, "setup"))
        clear_unfinished(attempt)
        state = _load(attempt) if start else hashlib.sha256(str(attempt.run.run.seed).encode()).digest()
    metrics = Metrics(attempt)
    attempt.emit(TrainerStarted(number, os.getpid(), 0, 1, "cpu", "fp32", 1000, 256, start))
    attempt.emit(Phase(number, "train"))
    step, last_step = start, attempt.run.run.max_steps
    interval_steps = attempt.run.checkpoint.interval_steps or last_step
    while step < last_step and not stop.is_requested():
        time.sleep(float(os.environ.get("FUZZ_STEP_S", "0.002")))
        step += 1
        state = hashlib.sha256(state + step.to_bytes(8, "big")).digest()
        metrics.add(_line(step, state))
        if step < last_step and step % interval_steps == 0:
            _save(attempt, step, state)
    metrics.close()
    attempt.emit(Phase(number, "checkpoint"))
    if step > start:
        _save(attempt, step, state)
    if step < last_step:
        attempt.emit(TrainerStopped(number, step))
    else:
        attempt.emit(TrainerFinished(number, step, loss_of(state), str(attempt.run_dir.checkpoint(step))))


def loss_of(state: bytes) -> float:
    return int.from_bytes(state[:4], "big") / 2**32


def _line(step: int, state: bytes) -> StepMetrics:
    nothing = dict.fromkeys(("data_s", "forward_backward_s", "optimizer_s", "checkpoint_s", "peak_memory_gib"), 0.0)
    return StepMetrics(
        step=step,
        loss=loss_of(state),
        lr=0.1,
        grad_norm=1.0,
        tokens=64,
        tokens_seen=64 * step,
        tokens_per_s=64.0,
        step_s=1.0,
        mfu=None,
        skipped=False,
        **nothing,
    )


def _content(state: bytes) -> bytes:
    return state + b"".join(hashlib.sha256(state + bytes([n % 251])).digest() for n in range(_WORDS))


def _load(attempt: Attempt) -> bytes:
    """As `trainer/saves/resume.py` does: restore, compare hashes, and record a damaged checkpoint."""
    folder = attempt.run_dir.checkpoint(attempt.resume_step)
    try:
        if not layout.problem(folder) and packing_plan.is_packed(folder):
            archive.restore(folder)
        if problem := layout.problem(folder, on_read=lambda _: None):
            raise DamagedError(problem)
    except DamagedError as error:
        attempt.events.append(CheckpointUnreadable(attempt.number, attempt.resume_step, str(error)))
        with suppress(OSError, ValueError):
            layout.mark_damaged(folder, str(error))
        raise DamagedError(f"{folder.name}: {error}") from error
    content = (folder / SHARD).read_bytes()
    if content != _content(content[:32]):
        why, fix = "its hash agrees, so another state was saved", "compare it with an undisturbed run"
        raise UserError(f"{folder.name} is not a state of this run", str(folder), why, fix)
    return content[:32]


def _save(attempt: Attempt, step: int, state: bytes) -> None:
    began_s = time.monotonic()
    attempt.emit(CheckpointStarted(attempt.number, step))
    folder = attempt.run_dir.checkpoint(step)
    make_room(attempt, folder)
    folder.mkdir(parents=True)
    (folder / SHARD).write_bytes(_content(state))
    (folder / INDEX).write_bytes(hashlib.sha256(state).digest())
    size_bytes = layout.write_manifest(folder, step)
    attempt.emit(CheckpointSaved(attempt.number, step, size_bytes, 0.0, time.monotonic() - began_s))
    delete_superseded(attempt, step, set())
