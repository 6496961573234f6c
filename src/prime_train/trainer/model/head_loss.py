"""Cross-entropy and log-probabilities of the head, from the last hidden states and its weights, in chunks of rows.

Holds no weights. Shapes: N positions, C width of the residual stream, P rows of the head (V, or V padded), R rows of a
chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from prime_train.spec.decoder_size import CHUNKED_FROM_VOCAB, rows_of_chunk, rows_of_logprobs
from prime_train.trainer.batch import IGNORED
from prime_train.trainer.model.decoder import Counted, HeadLogprobs, HeadLoss, hide_padding, whole_logprobs, whole_loss

Differentiate = Callable[..., tuple[Tensor, Tensor | None]]  # `differentiate`, or that compiled


def choose_loss(device: torch.device, vocab_size: int, *, compiled: bool) -> HeadLoss:
    """The loss: in chunks on a GPU with a large vocabulary, else of all logits at once, 3.8x as fast on two cores."""
    if device.type != "cuda":
        return whole_loss
    if vocab_size >= CHUNKED_FROM_VOCAB:
        return partial(chunked_loss, differentiate=torch.compile(differentiate)) if compiled else chunked_loss
    return torch.compile(_plain_loss) if compiled else whole_loss


def choose_logprobs(device: torch.device, *, compiled: bool) -> HeadLogprobs:
    """How a device computes log-probabilities: in chunks on a GPU. There, a small vocabulary has one chunk."""
    if device.type != "cuda":
        return whole_logprobs
    if not compiled:
        return chunked_logprobs
    operations = ChunkOperations(torch.compile(_read_chunk), torch.compile(_differentiate_logprobs))
    return partial(chunked_logprobs, operations=operations)


def _plain_loss(hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """`whole_loss` by torch's own operations, which a compiler joins into one."""
    logits = hide_padding(F.linear(hidden, weight), vocab_size).flatten(0, -2).float()  # (N, P)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")


def differentiate(
    hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int, *, needed: bool
) -> tuple[Tensor, Tensor | None]:
    """The loss of a chunk, 0-d, and if `needed` the gradient of its logits (R, P), from (R, C), (P, C) and (R,)."""
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
    hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int, differentiate: Differentiate = differentiate
) -> Tensor:
    """`whole_loss` without all logits at once: they are computed and dropped a chunk of rows at a time.

    torch's own linear_cross_entropy (2.13) returns a bf16 sum for bf16 inputs, which has three digits.
    Source: Cut Your Losses, arXiv 2411.09009, s. 4; the gradient in the forward as in Liger, arXiv 2410.10989, s. 3.2.
    """
    hidden, weight = _cast_for_product(hidden, weight)  # what is cast need not live on
    rows = hidden.flatten(0, -2)  # (N, C)
    with torch.autocast(hidden.device.type, enabled=False):
        total = _ChunkedLoss.apply(rows, weight, labels.flatten(), vocab_size, differentiate)  # type: ignore[no-untyped-call]
        return cast(Tensor, total)


def _cast_for_product(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the type of autocast, as for F.linear, and without a gradient where none is recorded."""
    if torch.is_autocast_enabled(hidden.device.type):
        kind = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(kind), weight.to(kind)
    if not torch.is_grad_enabled():  # needs_input_grad is true even then
        hidden, weight = hidden.detach(), weight.detach()
    return hidden, weight


def _chunks(rows: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, rows, size))


class _HeadGradients:
    """The gradients of hidden states (N, C) and weight (P, C), to which each chunk adds; None where not needed."""

    def __init__(self, hidden: Tensor, weight: Tensor, needed: tuple[bool, bool]) -> None:
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None

    def add(self, rows: slice, hidden: Tensor, weight: Tensor, gradient: Tensor) -> None:
        """`gradient` (R, P): that of the logits of `rows`."""
        if self.hidden is not None:
            torch.mm(gradient, weight, out=self.hidden[rows])
        if self.weight is not None and hidden.dtype == torch.float32:
            self.weight.addmm_(gradient.T, hidden[rows])
        elif self.weight is not None:
            self.weight += gradient.T @ hidden[rows]


class _ChunkedLoss(torch.autograd.Function):
    """The gradients are computed in the forward, because the logits of a chunk exist only there."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int, differentiate: Differentiate
    ) -> Tensor:
        of_hidden, of_weight, *_ = ctx.needs_input_grad
        needed = of_hidden or of_weight
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        gradients = _HeadGradients(hidden, weight, (of_hidden, of_weight))
        for rows in _chunks(len(hidden), rows_of_chunk(len(hidden))):
            loss, gradient = differentiate(hidden[rows], weight, labels[rows], vocab_size, needed=needed)
            total += loss
            if gradient is not None:
                gradients.add(rows, hidden, weight, gradient)
            del gradient  # before the next chunk has its own
        ctx.gradients = (gradients.hidden, gradients.weight)
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


class _Distribution(NamedTuple):
    """What the logits of the head are a distribution over, and what divides them."""

    vocab_size: int
    temperature: float


def _log_softmax(hidden: Tensor, weight: Tensor, over: _Distribution) -> Tensor:
    """The log-probabilities of all tokens, (R, P) fp32; -inf for what is no token."""
    logits = hide_padding(hidden @ weight.T, over.vocab_size).float()  # (R, P)
    return torch.log_softmax(logits.div_(over.temperature), -1)


def _read_chunk(hidden: Tensor, weight: Tensor, labels: Tensor, over: _Distribution) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the rows of a chunk, (R,) each, from (R, C), (P, C) and labels (R,)."""
    log_probs = _log_softmax(hidden, weight, over)[:, : over.vocab_size]  # (R, V)
    entropy = -log_probs.exp().mul_(log_probs).sum(-1)  # (R,)
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), entropy


def _differentiate_logprobs(
    hidden: Tensor, weight: Tensor, labels: Tensor, over: _Distribution, gradient: Tensor
) -> Tensor:
    """The gradient of the logits of a chunk, (R, P), from that of its log-probabilities, (R,)."""
    of_logits = _log_softmax(hidden, weight, over).exp_().neg_()  # (R, P): one-hot - softmax
    of_logits[torch.arange(len(labels), device=labels.device), labels] += 1
    return of_logits.mul_((gradient / over.temperature).unsqueeze(1)).to(hidden.dtype)


class ChunkOperations(NamedTuple):
    """What is computed of a chunk: these functions, or them compiled."""

    read: Callable[..., tuple[Tensor, Tensor]] = _read_chunk
    differentiate: Callable[..., Tensor] = _differentiate_logprobs


_EAGER = ChunkOperations()


def chunked_logprobs(
    hidden: Tensor, weight: Tensor, counted: Counted, vocab_size: int, operations: ChunkOperations = _EAGER
) -> tuple[Tensor, Tensor]:
    """`whole_logprobs` in chunks, which the backward computes again: a token's loss depends on its log-probability."""
    hidden = hidden.flatten(0, -2).index_select(0, counted.places)  # (N, C)
    hidden, weight = _cast_for_product(hidden, weight)
    over = _Distribution(vocab_size, counted.temperature)
    with torch.autocast(hidden.device.type, enabled=False):
        read = _ChunkedLogprobs.apply(hidden, weight, counted.labels, over, operations)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, Tensor], read)


class _ChunkedLogprobs(torch.autograd.Function):
    """Keeps hidden states and weight, and no logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, over: _Distribution, operations: ChunkOperations
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy = (torch.empty(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(2))
        for rows in _chunks(len(hidden), rows_of_logprobs(over.vocab_size)):
            logprobs[rows], entropy[rows] = operations.read(hidden[rows], weight, labels[rows], over)
        ctx.save_for_backward(hidden, weight, labels)
        ctx.over, ctx.operations = over, operations
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy  # (N,), (N,)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, labels = ctx.saved_tensors
        gradients = _HeadGradients(hidden, weight, ctx.needs_input_grad[:2])
        for rows in _chunks(len(hidden), rows_of_logprobs(ctx.over.vocab_size)):
            gradient = ctx.operations.differentiate(hidden[rows], weight, labels[rows], ctx.over, of_logprobs[rows])
            gradients.add(rows, hidden, weight, gradient)
            del gradient  # before the next chunk has its own
        of_weight = None if gradients.weight is None else gradients.weight.to(weight.dtype)
        return gradients.hidden, of_weight, None, None, None
