"""The cross-entropy of the head, from the last hidden states and the head's weights. Holds no weights.

Shapes: N positions, C width of the residual stream, P rows of the head (V, or V padded), R rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from prime_train.spec.decoder_size import CHUNKED_FROM_VOCAB, rows_of_chunk
from prime_train.trainer.data.batch import IGNORED
from prime_train.trainer.model import HeadLoss, hide_padding, whole_loss

Differentiate = Callable[..., tuple[Tensor, Tensor | None]]  # `differentiate`, or that compiled


def choose_loss(device: torch.device, vocab_size: int, *, compiled: bool) -> HeadLoss:
    """The loss for a device: in chunks on a GPU with a large vocabulary, else of all logits at once.

    On two CPU cores chunks take 3.8 times as long, because each of their products is small.
    """
    if device.type != "cuda":
        return whole_loss
    if vocab_size >= CHUNKED_FROM_VOCAB:
        return partial(chunked_loss, differentiate=torch.compile(differentiate)) if compiled else chunked_loss
    return torch.compile(_plain_loss) if compiled else whole_loss


def _plain_loss(hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """`whole_loss` by torch's own operations, which a compiler joins into one."""
    logits = hide_padding(F.linear(hidden, weight), vocab_size).flatten(0, -2).float()  # (N, P)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")


def differentiate(
    hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int, *, needed: bool
) -> tuple[Tensor, Tensor | None]:
    """The cross-entropy of a chunk summed, 0-d, and if `needed` the gradient of its logits, (R, P).

    Shapes: hidden (R, C), weight (P, C), labels (R,).
    """
    logits = hide_padding(hidden @ weight.T, vocab_size)  # (R, P)
    log_probs = torch.log_softmax(logits, -1, dtype=torch.float32)  # (R, P)
    del logits  # before the gradient has as many bytes
    total = F.nll_loss(log_probs, labels, ignore_index=IGNORED, reduction="sum")
    if not needed:
        return total, None
    gradient = log_probs.exp_()  # (R, P): softmax - one-hot
    gradient[torch.arange(len(labels), device=labels.device), labels.clamp(min=0)] -= 1
    return total, gradient.mul_((labels != IGNORED).unsqueeze(1)).to(hidden.dtype)


def chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    vocab_size: int,
    differentiate: Differentiate = differentiate,
) -> Tensor:
    """`whole_loss` without all logits at once: they are computed and dropped a chunk of rows at a time.

    torch's own linear_cross_entropy (2.13) returns a bf16 sum for bf16 inputs, which has three digits.
    Source: Cut Your Losses, arXiv 2411.09009, s. 4; the gradient in the forward as in Liger, arXiv 2410.10989, s. 3.2.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        kind = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(kind), weight.to(kind)
    if not torch.is_grad_enabled():  # needs_input_grad is true even then
        hidden, weight = hidden.detach(), weight.detach()
    rows = hidden.flatten(0, -2)  # (N, C)
    with torch.autocast(hidden.device.type, enabled=False):
        total = _ChunkedLoss.apply(rows, weight, labels.flatten(), vocab_size, differentiate)  # type: ignore[no-untyped-call]
        return cast(Tensor, total)


class _ChunkedLoss(torch.autograd.Function):
    """The gradients are computed in the forward, because the logits of a chunk exist only there."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        vocab_size: int,
        differentiate: Differentiate,
    ) -> Tensor:
        of_hidden, of_weight, *_ = ctx.needs_input_grad
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if of_hidden else None  # (N, C)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if of_weight else None  # (P, C)
        size = rows_of_chunk(len(hidden))
        for start in range(0, len(hidden), size):
            part, wanted = hidden[start : start + size], labels[start : start + size]  # (R, C), (R,)
            loss, gradient = differentiate(part, weight, wanted, vocab_size, needed=of_hidden or of_weight)
            total += loss
            if gradient is None:
                continue
            if grad_hidden is not None:
                torch.mm(gradient, weight, out=grad_hidden[start : start + size])
            if grad_weight is not None and part.dtype == torch.float32:
                grad_weight.addmm_(gradient.T, part)
            elif grad_weight is not None:
                grad_weight += gradient.T @ part
            del gradient  # before the next chunk has its own
        ctx.gradients = (grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """The gradients of the forward times that of the loss. A second backward raises an error."""
        grad_hidden, grad_weight = ctx.gradients
        ctx.gradients = None
        scaled = None if grad_hidden is None else grad_hidden.mul_(grad_total)
        if grad_weight is not None:
            grad_weight = grad_weight.mul_(grad_total).to(ctx.weight_dtype)
        return scaled, grad_weight, None, None, None
