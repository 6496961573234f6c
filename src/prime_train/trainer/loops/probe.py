"""Times forward and backward of larger micro-batches after a profiled run, so that their gain is measured."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

import psutil
import torch

from prime_train.trainer import parallel
from prime_train.trainer.loops.step import AnyBatch, LossSum, Training

_TIMES = (1, 2, 4, 8)
_MOST_S = 5.0  # a larger one than this is not tried
_ROUNDS = 3


def probe_micro_batches(training: Training, batch: AnyBatch, compute_loss: LossSum[AnyBatch]) -> None:
    """Write one span for each size that fits: the fastest of some forwards and backwards. Discards the gradients.

    Each round runs every size once, so that a machine that slows down meanwhile slows down all of them. Ranks with a
    model of their own measure without collectives. A sharded model is not measured.
    """
    if parallel.is_sharded(training.model):
        return
    rounds = [_run_sizes_that_fit(training, batch, compute_loss)]
    for _ in range(_ROUNDS - 1):
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
    for times in _TIMES:
        try:
            began_s, end_s = _run(training, _repeat(batch, times), compute_loss)
        except torch.OutOfMemoryError:
            training.optimizer.zero_grad(set_to_none=True)
            break
        found[times] = began_s, end_s
        grown_bytes = psutil.Process().memory_info().rss - used_before
        if end_s - began_s > _MOST_S or 4 * grown_bytes > psutil.virtual_memory().available:
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


def _repeat(batch: Any, times: int) -> Any:
    """The rows of a batch `times` times. A batch is a dataclass of tensors (B, T)."""
    rows = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: tensor.repeat(times, 1) for name, tensor in rows.items()})
