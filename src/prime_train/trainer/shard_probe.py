"""Measures, once in an attempt, what decides whether FSDP2 should keep gathered weights. Changes no weight.

`estimate/reshard.py` turns the numbers into advice, outside of the trainer.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import psutil
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from prime_train.events import ShardsMeasured
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.step import StepResult, Training

_STEPS = 20
_REPEATS = 3


@dataclass(slots=True)
class ShardProbe:
    """Collects the times of the first steps of an attempt, then measures a gather. Does nothing without shards."""

    attempt: Attempt
    training: Training
    reshards: bool
    _micro_batch_s: list[float] = field(default_factory=list)

    def add(self, step: int, result: StepResult, micro_batches: int) -> None:
        """Count a step. After the 20th one every rank gathers the weights of all blocks; rank 0 writes the event."""
        if not parallel.is_sharded(self.training.model) or len(self._micro_batch_s) == _STEPS:
            return
        self._micro_batch_s.append(result.forward_backward_s / micro_batches)
        if len(self._micro_batch_s) == _STEPS:
            gather_s = min(_gather_blocks(self.training) for _ in range(_REPEATS))
            free_bytes, all_bytes = _memory_bytes(self.training)
            self.attempt.emit(
                ShardsMeasured(
                    attempt=self.attempt.number,
                    step=step,
                    reshards=self.reshards,
                    gather_s=gather_s,
                    micro_batch_s=statistics.median(self._micro_batch_s),
                    kept_bytes=_kept_bytes(self.training),
                    free_bytes=free_bytes,
                    all_bytes=all_bytes,
                )
            )


def _blocks(training: Training) -> list[nn.Module]:
    return list(parallel.unwrap(training.model).blocks)


def _gather_blocks(training: Training) -> float:
    """Seconds to gather the weights of each block, one after the other."""
    _synchronize(training)
    began = time.perf_counter()
    for block in _blocks(training):
        assert isinstance(block, FSDPModule)
        block.unshard()
        block.reshard()
    _synchronize(training)
    return time.perf_counter() - began


def _synchronize(training: Training) -> None:
    if training.device.torch.type == "cuda":
        torch.cuda.synchronize(training.device.torch)


def _kept_bytes(training: Training) -> int:
    width = 2 if training.device.compute == "bf16" else 4
    return width * sum(weight.numel() for block in _blocks(training) for weight in block.parameters())


def _memory_bytes(training: Training) -> tuple[int, int]:
    """Free bytes at the peak of a step, and all bytes: of the GPU, or this process's part of the machine's memory."""
    if training.device.torch.type == "cuda":
        free, whole = torch.cuda.mem_get_info(training.device.torch)
        unused = torch.cuda.memory_reserved(training.device.torch) - torch.cuda.max_memory_allocated(
            training.device.torch
        )
        return free + unused, whole
    memory, processes = psutil.virtual_memory(), training.world.local_size
    return memory.available // processes, memory.total // processes
