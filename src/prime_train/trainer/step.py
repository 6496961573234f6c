"""Builds AdamW and runs one optimizer step over its micro-batches. Writes no file and no event.

Shapes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prime_train.trainer import optim
from prime_train.trainer.attention import plan_attention
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.device import Device
from prime_train.trainer.model import cross_entropy_sum
from prime_train.trainer.parallel import World, sync_gradients


@dataclass(frozen=True, slots=True)
class Training:
    """The objects that a step uses. `model` is the wrapped model."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    world: World
    device: Device
    clip_norm: float | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one optimizer step; only the times differ between ranks."""

    loss: float  # mean cross-entropy per labelled token of the global batch, nats
    grad_norm: float  # before clipping
    tokens: int  # labelled tokens of the global batch
    stop: bool  # a stop was requested on at least one rank
    forward_backward_s: float
    wait_s: float  # in `before_update`
    optimizer_s: float


def train_step(
    training: Training,
    micro_batches: Sequence[Batch],
    lr: float,
    *,
    stop_requested: bool = False,
    before_update: Callable[[], None] = lambda: None,
) -> StepResult:
    """Forward, backward, clip and update. `before_update` is called directly before the weights change.

    The loss is divided by the labelled tokens of all micro-batches of all ranks, which are counted first. Therefore
    any split of the same rows over micro-batches and ranks gives the same gradient.
    """
    began = time.perf_counter()
    world, device = training.world, training.device.torch
    labelled = sum(batch.labelled_tokens for batch in micro_batches)
    counts = world.sum(torch.tensor([labelled, int(stop_requested)], dtype=torch.float64, device=device))  # (2,)
    loss = world.sum(_accumulate(training, micro_batches, counts[0]))  # ()
    grad_norm = optim.clip_(training.model.parameters(), training.clip_norm)  # ()
    values = torch.stack([loss, grad_norm.to(loss), counts[0].to(loss), counts[1].to(loss)]).tolist()  # only GPU sync
    computed = time.perf_counter()
    before_update()
    waited = time.perf_counter()
    optim.set_lr(training.optimizer, lr)
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=values[0],
        grad_norm=values[1],
        tokens=round(values[2]),
        stop=values[3] > 0,
        forward_backward_s=computed - began,
        wait_s=waited - computed,
        optimizer_s=time.perf_counter() - waited,
    )


def _accumulate(training: Training, micro_batches: Sequence[Batch], tokens: Tensor) -> Tensor:
    """Add up the gradients of the step's mean loss; returns this rank's part of that loss, 0-d fp64."""
    # DDP and FSDP2 average gradients over ranks; the loss is a sum over ranks.
    scale = (training.world.size / tokens).float()  # ()
    total = torch.zeros((), dtype=torch.float64, device=training.device.torch)
    for number, batch in enumerate(micro_batches):
        sync_gradients(training.model, last=number + 1 == len(micro_batches))
        summed = loss_sum(training.model, batch, training.device)  # ()
        (summed * scale).backward()  # type: ignore[no-untyped-call]
        total += summed.detach().double()
    return total / tokens


def loss_sum(model: nn.Module, batch: Batch, device: Device) -> Tensor:
    """Sum of the cross-entropy over the labelled tokens of one micro-batch, 0-d."""
    mask = plan_attention(batch.documents, batch.labels, device.torch)  # (B, 1, T, T) or None
    tokens, labels, positions = (
        tensor.to(device.torch, non_blocking=True)  # (B, T)
        for tensor in (batch.tokens, batch.labels, batch.positions)
    )
    with device.autocast():
        logits = model(tokens, positions, mask)  # (B, T, V)
        return cross_entropy_sum(logits, labels)
