"""Measures how long a checkpoint blocks the training loop, compared with a plain torch.save of the same state.

    python bench/checkpoint.py [--rounds 5] [--folder DIR]

The state is a model of 44.8 M parameters and AdamW's two moments, 538 MB in fp32. In each round the same training loop
saves it in three ways, in turn: torch.save, DCP's own synchronous save, and the trainer's Checkpointer. For the
Checkpointer, all the waiting of the loop counts: the call itself, and the wait before the next optimizer step until the
copy is complete. The first two do not call fsync; the Checkpointer's write time includes fsync and SHA-256 of every
file.

Memory is the peak of a training step during a save, minus the peak of a step without one. It is also measured, in
separate processes, for models of half and twice the width with the same number of tensors: memory that grows with the
state is copies of it; the rest is threads, code and data per tensor. In these processes the C library returns freed
memory at once. By default it keeps some, so the peak of a plain step varies by 2 % of the state.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch

from prime_train import events, spec
from prime_train.core.rundir import RunDir
from prime_train.trainer import device
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.model.decoder import build, config_of
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition, gather
from prime_train.trainer.saves.staging import size_bytes

VOCAB_SIZE = 12288
CTX_TOKENS = 256
WIDTH = 512
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}  # mallopt(3)
RUN = spec.RunSpec(
    run=spec.Run(name="bench-checkpoint", max_steps=1000),
    model=spec.Model(layers=12, hidden_size=WIDTH, heads=8),
    data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=CTX_TOKENS),
    checkpoint=spec.Checkpoint(keep_last=1),
)


@dataclass(slots=True)
class Samples:
    """Seconds, one per round."""

    torch_save: list[float] = field(default_factory=list)
    dcp_save: list[float] = field(default_factory=list)
    call: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    stall: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    step_beside: list[float] = field(default_factory=list)


class Memory(NamedTuple):
    """Bytes of the state, and the extra bytes of a save during a training step."""

    state_bytes: int
    extra_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="output folder; default: the system's temporary folder")
    parser.add_argument("--memory-of-width", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.memory_of_width:
            print(json.dumps(measure_memory(Path(folder), given.memory_of_width)))
            return
        memory = [memory_in_a_process(width, folder) for width in (WIDTH // 2, WIDTH, 2 * WIDTH)]
        training = make_training(WIDTH)
        samples = measure(training, Path(folder), given.rounds)
        held_bytes = size_bytes(gather(training.model, training.optimizer, TrainPosition(), 0))
    report(samples, held_bytes, memory)


def make_training(width: int) -> Training:
    model = build(config_of(replace(RUN.model, hidden_size=width), VOCAB_SIZE), RUN.run.seed)
    return Training(model, adamw(model, RUN.optim), World(rank=0, size=1), device.pick("fp32"), RUN.optim.clip_norm)


def memory_in_a_process(width: int, folder: str) -> Memory:
    command = [sys.executable, __file__, "--memory-of-width", str(width), "--folder", folder]
    done = subprocess.run(command, env=os.environ | GIVE_BACK, stdout=subprocess.PIPE, text=True, check=True)
    return Memory(*json.loads(done.stdout))


def measure_memory(folder: Path, width: int) -> Memory:
    """The state of a model of `width`, and the memory of the second save, because the first save imports code."""
    training = make_training(width)
    checkpointer = make_checkpointer(training, folder)
    step(training)
    without_bytes = max(peak_bytes(lambda: step(training)) for _ in range(3))
    checkpointer.prepare(training.model, training.optimizer)
    for number in (1, 2):
        extra_bytes = peak_bytes(lambda n=number: save_beside_training(training, checkpointer, n, Samples()))
    return Memory(
        size_bytes(gather(training.model, training.optimizer, TrainPosition(), 0)), extra_bytes - without_bytes
    )


def make_checkpointer(training: Training, folder: Path) -> Checkpointer:
    run_dir = RunDir(folder)
    attempt = Attempt(RUN, run_dir, 1, 0, events.EventLog(run_dir.events, "bench"), 0)
    return Checkpointer(attempt, training.world, training.device.torch)


def measure(training: Training, folder: Path, rounds: int) -> Samples:
    """The seconds of each way."""
    samples = Samples()
    checkpointer = make_checkpointer(training, folder)
    step(training)
    checkpointer.prepare(training.model, training.optimizer)
    for number in range(1, rounds + 1):
        step(training)
        samples.step.append(step(training))
        save_beside_training(training, checkpointer, number, samples)
        samples.torch_save.append(timed(lambda: torch_save(training, folder / "torch.pt")))
        samples.dcp_save.append(timed(lambda: dcp_save(training, folder / "dcp")))
    found = events.read(RunDir(folder).events)
    samples.write = [e.event.write_s for e in found if isinstance(e.event, events.CheckpointSaved)]
    return samples


def save_beside_training(training: Training, checkpointer: Checkpointer, number: int, samples: Samples) -> None:
    """One save by the Checkpointer, the training step during it, and its end."""
    checkpointer.take_stall_s()
    call_s = timed(lambda: checkpointer.save(training.model, training.optimizer, TrainPosition(number)))
    waits: list[float] = []
    samples.step_beside.append(step(training, lambda: waits.append(timed(checkpointer.before_update))))
    samples.call.append(call_s)
    samples.wait.append(waits[0])
    samples.stall.append(checkpointer.take_stall_s())
    checkpointer.finish()


def step(training: Training, before_update: Any = lambda: None) -> float:
    tokens = torch.randint(0, VOCAB_SIZE, (1, CTX_TOKENS + 1), generator=torch.Generator().manual_seed(1))  # (B, T + 1)
    positions = torch.arange(CTX_TOKENS).expand(1, -1)  # (B, T)
    batch = MicroBatch(tokens[:, :-1], tokens[:, 1:], positions, torch.zeros_like(positions))
    return timed(lambda: train_step(training, [batch], 1e-4, before_update=before_update))


def torch_save(training: Training, path: Path) -> None:
    torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, path)


def dcp_save(training: Training, folder: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    state = gather(training.model, training.optimizer, TrainPosition(), 0)
    save(state, storage_writer=FileSystemWriter(folder, sync_files=False, overwrite=True), no_dist=True)


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _status(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def peak_bytes(work: Any) -> int:
    """The peak resident bytes while `work` ran. Source: proc_pid_clear_refs(5), value 5, resets VmHWM."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    work()
    return _status("VmHWM")


def report(samples: Samples, held_bytes: int, memory: list[Memory]) -> None:
    state = {"state_mb": round(held_bytes / 1e6)}
    plain = record.emit("torch.save, the loop stands still", samples.torch_save, **state)
    rows = [plain, record.emit("dcp.save, the loop stands still", samples.dcp_save, **state)]
    stall = record.percentile(samples.stall, 0.5) / plain["median"]
    rows.append(
        record.emit("Checkpointer, all that the loop waits", samples.stall, of_torch_save=round(stall, 4), **state)
    )
    rows.append(record.emit("Checkpointer, the call", samples.call, **state))
    rows.append(record.emit("Checkpointer, wait before the next optimizer step", samples.wait, **state))
    rows.append(record.emit("Checkpointer, until the manifest", samples.write, **state))
    rows.append(record.emit("a training step", samples.step))
    rows.append(record.emit("a training step beside a save", samples.step_beside))
    half, *_, whole = memory
    copies = (whole.extra_bytes - half.extra_bytes) / (whole.state_bytes - half.state_bytes)
    beyond_bytes = whole.extra_bytes - copies * whole.state_bytes
    took = [found.extra_bytes / found.state_bytes for found in memory]
    beside = {"copies_that_grow_with_the_state": round(copies, 4), "beyond_them_mb": round(beyond_bytes / 1e6, 1)}
    rows.append(record.emit("Checkpointer, memory of a save as part of the state", took, unit="ratio", **beside))
    record.write("checkpoint", rows)


if __name__ == "__main__":
    main()
