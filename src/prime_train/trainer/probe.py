"""Times forward and backward of larger micro-batches after a profiled run, so that their gain is measured."""

from __future__ import annotations

import time
from dataclasses import fields

import psutil
import torch

from prime_train.trainer import parallel
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.step import Training, loss_sum

_TIMES = (1, 2, 4, 8)
_MOST_S = 5.0  # a larger one than this is not tried
_REPEATS = 3


def probe_micro_batches(training: Training, batch: Batch) -> None:
    """Write one span for each size that fits: the fastest of some forwards and backwards. Discards the gradients.

    Ranks with a model of their own measure without collectives. A sharded model is not measured.
    """
    if parallel.is_sharded(training.model):
        return
    used_before = psutil.Process().memory_info().rss
    for times in _TIMES:
        try:
            began_s, end_s = min((_run(training, _repeat(batch, times)) for _ in range(_REPEATS)), key=_seconds)
        except torch.OutOfMemoryError:
            break
        finally:
            training.optimizer.zero_grad(set_to_none=True)
        training.spans.probe(times, began_s, end_s)
        grown_bytes = psutil.Process().memory_info().rss - used_before
        if end_s - began_s > _MOST_S or 4 * grown_bytes > psutil.virtual_memory().available:
            break


def _seconds(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]


def _run(training: Training, batch: Batch) -> tuple[float, float]:
    """When a forward and backward began and ended, in seconds of the monotonic clock."""
    model = parallel.unwrap(training.model)
    began_s = time.monotonic()
    loss = loss_sum(model, batch, training.device)  # ()
    (loss / batch.labelled_tokens).backward()  # type: ignore[no-untyped-call]
    if training.device.torch.type == "cuda":
        torch.cuda.synchronize(training.device.torch)
    return began_s, time.monotonic()


def _repeat(batch: Batch, times: int) -> Batch:
    """The rows of a batch, `times` times."""
    rows = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return Batch(**{name: tensor.repeat(times, 1) for name, tensor in rows.items()})
