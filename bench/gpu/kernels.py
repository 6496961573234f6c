"""Packed documents give the loss and the gradients of separate ones, in short and long rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from gpu.bench import Bench
from gpu.training import Scale, batch_of, pick_device, scale_of, training_of
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.loops.step import Training, loss_sum

TYPES = (("fp32", 1e-5), ("bf16", 2e-2))  # with the tolerance of each


def measure(bench: Bench) -> None:
    torch.set_float32_matmul_precision("highest")
    for length in (16, 64) if bench.tiny else (256, 2048, 8192):
        for compute, tolerance in TYPES[:1] if bench.tiny else TYPES:
            base = scale_of(bench, "124m")
            model = replace(base.model, layers=2, compile=False)
            scale = base._replace(model=model, ctx_tokens=length, micro_batch=2, compute=compute)
            what = f"packed beside separate documents, {length} tokens, {compute}"
            with bench.case(what):
                _compare(bench, what, scale, tolerance)


def _compare(bench: Bench, what: str, scale: Scale, tolerance: float) -> None:
    batch = batch_of(scale, documents=5)
    loss, gradient = find_errors(training_of(scale, pick_device(bench)), batch, [*separate(batch)])
    error = max(loss, gradient)
    bench.emit(what, error=error, loss_error=loss, gradient_error=gradient, ok=error <= tolerance)


def separate(batch: MicroBatch) -> Iterator[MicroBatch]:
    """Each document of a micro-batch in a row of its own."""
    for row in range(len(batch.tokens)):
        for number in sorted(set(batch.documents[row].tolist())):
            here = batch.documents[row] == number
            tokens, labels, positions = (
                one[row][here].unsqueeze(0) for one in (batch.tokens, batch.labels, batch.positions)
            )
            yield MicroBatch(tokens, labels, positions, torch.zeros_like(tokens))


def find_errors(training: Training, packed: MicroBatch, apart: list[MicroBatch]) -> tuple[float, float]:
    """Relative differences of the packed loss, and of the gradient that differs most, from those of the others."""
    packed_loss, packed_gradients = _gradients(training, [packed])
    loss, gradients = _gradients(training, apart)
    worst = max(float((packed_gradients[name] - each).norm() / each.norm()) for name, each in gradients.items())
    return abs(packed_loss / loss - 1), worst


def _gradients(training: Training, batches: list[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    training.model.zero_grad()
    total = 0.0
    for batch in batches:
        loss = loss_sum(training.model, batch, training.device)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    found = {name: weight.grad.clone() for name, weight in training.model.named_parameters() if weight.grad is not None}
    return total, found
