"""Counts the live bytes of one block and of the head, forward and backward, beside the terms of the estimate.

    python bench/activation_trace.py

Trains nothing and needs no GPU: fake tensors on the CPU have the same sizes as real tensors on a GPU. FlashAttention
and the fused RMSNorm are replaced by functions that save the same tensors for the backward, because the CPU's
operations save others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import record
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prime_train import spec
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.activations import block_terms, kept_per_layer, logits_terms
from prime_train.estimate.memory.coefficients import fitted_entry
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.model.shape import shape_from_run
from prime_train.spec.decoder_size import rows_of_chunk
from prime_train.trainer.model.decoder import Block, ModelConfig, cross_entropy_sum
from prime_train.trainer.model.head_loss import chunked_loss
from prime_train.trainer.model.rotary import rotations

_THETA, _EPS = 10_000.0, 1e-6  # these values do not change the memory
_FP32_BYTES = 4
_VOCABULARIES = (32_768, 151_936)  # a head in place, and one in chunks


class Sizes(NamedTuple):
    """The sizes to trace. `tokens`: of one micro-batch on one GPU; `head_tokens`: tokens with logits at the same time.

    `autocast`: fp32 weights, cast at use; `full_precision`: fp32 weights and products; else both are in bf16.
    `in_place`, `in_chunks`: the bundled trainer's losses. `fused`: RMSNorm as torch's CUDA operation, which saves its
    input and one number per row, and log_softmax in another type without a copy of the logits; else their separate
    operations.
    """

    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    qk_norm: bool
    tokens: int
    head_tokens: int
    autocast: bool
    in_place: bool
    in_chunks: bool = False
    full_precision: bool = False
    fused: bool = False


class LivePeaks(NamedTuple):
    """Bytes without weights, their gradients and the input. `kept`: after the forward; `peak`: for a block in the
    backward, for the head in forward or backward."""

    block_kept_bytes: int
    block_peak_bytes: int
    head_peak_bytes: int


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch 2.13 has no types for it
    """Counts the bytes of the storages that operations create, while they are referenced.

    A tensor with the shape of a weight or of a transposed weight is a cast or a gradient of it. It is not counted,
    because the memory estimate has separate terms for these.
    """

    def __init__(self, weights: frozenset[tuple[int, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = weights | {shape[::-1] for shape in weights}
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        if tuple(tensor.shape) in self._weights:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size

    def reset_peak(self) -> None:
        self.peak_bytes = self.live_bytes


class _Flash(torch.autograd.Function):
    """Saves queries, keys, values, output and the log-sum-exp of each row. Source: arXiv 2307.08691, s. 3.1."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        sums = torch.empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _FusedNorm(torch.autograd.Function):
    """Saves its input, its weight and one fp32 number per row. Source: torch aten::_fused_rms_norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, torch.empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class StandIn(TorchFunctionMode):
    """Replaces scaled_dot_product_attention by _Flash. With `fused` also replaces rms_norm by _FusedNorm where torch
    fuses it (input and weight have one type), and log_softmax without autograd by its result alone."""

    def __init__(self, *, fused: bool = False) -> None:
        super().__init__()
        self._fused = fused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            if torch.is_autocast_enabled("cpu"):
                query, key, value = (tensor.to(torch.bfloat16) for tensor in (query, key, value))
            return _Flash.apply(query, key, value)  # type: ignore[no-untyped-call]
        if func is F.rms_norm and self._fused:
            x, weight = args[0], (kwargs or {}).get("weight", args[2] if len(args) > 2 else None)
            if weight is not None and x.dtype == weight.dtype:
                return _FusedNorm.apply(x, weight)  # type: ignore[no-untyped-call]
        if func is torch.log_softmax and self._fused and not torch.is_grad_enabled():
            return torch.empty(args[0].shape, dtype=(kwargs or {}).get("dtype", args[0].dtype))
        return func(*args, **(kwargs or {}))


def trace(sizes: Sizes) -> LivePeaks:
    """The live bytes of one block and of the head."""
    sizes = sizes._replace(tokens=_avoid_weight_widths(sizes, sizes.tokens))
    sizes = sizes._replace(head_tokens=_avoid_weight_widths(sizes, sizes.head_tokens))
    with (
        FakeTensorMode(),
        StandIn(fused=sizes.fused),
        torch.autocast("cpu", torch.bfloat16, enabled=sizes.autocast),
    ):
        kept, peak = _block(sizes)
        return LivePeaks(kept, peak, _head(sizes))


def _avoid_weight_widths(sizes: Sizes, tokens: int) -> int:
    """`tokens`, increased until no activation has the shape of a weight."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    widths = {sizes.vocab_size, sizes.hidden_size, sizes.mlp_size, queries, keys}
    while tokens in widths or (sizes.in_chunks and rows_of_chunk(tokens) in widths):
        tokens += 1
    return tokens


def _dtype(sizes: Sizes) -> torch.dtype:
    return torch.float32 if sizes.autocast or sizes.full_precision else torch.bfloat16


def _block(sizes: Sizes) -> tuple[int, int]:
    shared: dict[str, Any] = {
        name: getattr(sizes, name) for name in Sizes._fields if name in ModelConfig.__dataclass_fields__
    }
    config = ModelConfig(layers=1, rope_theta=_THETA, norm_eps=_EPS, tie_embeddings=True, **shared)
    before = torch.get_default_dtype()
    torch.set_default_dtype(_dtype(sizes))  # fake weights cannot be converted afterwards
    try:
        block = Block(config)
    finally:
        torch.set_default_dtype(before)
    cos, sin = rotations(torch.arange(sizes.tokens).unsqueeze(0), sizes.head_dim, _THETA)

    x = torch.empty(1, sizes.tokens, sizes.hidden_size, dtype=_dtype(sizes))
    kept, _, peak = _measure(lambda x: cast(Tensor, block(x, cos, sin, None)), block, x)
    return kept, peak


def _head(sizes: Sizes) -> int:
    norm = nn.RMSNorm(sizes.hidden_size, _EPS, dtype=_dtype(sizes))
    head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False, dtype=_dtype(sizes))
    labels = torch.zeros(sizes.head_tokens, dtype=torch.long)

    def run(x: Tensor) -> Tensor:
        if sizes.in_chunks:
            return chunked_loss(norm(x), head.weight, labels, sizes.vocab_size)
        logits = head(norm(x))
        if sizes.in_place:
            return cross_entropy_sum(logits, labels)
        return F.cross_entropy(logits.float(), labels)

    x = torch.empty(sizes.head_tokens, sizes.hidden_size, dtype=_dtype(sizes))
    _, forward, backward = _measure(run, nn.ModuleList((norm, head)), x)
    return max(forward, backward)


def _measure(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> tuple[int, int, int]:
    """(bytes kept after the forward, peak of the forward, peak of the backward), without weights, their casts and
    their gradients."""
    x.requires_grad_()
    with LiveBytes(frozenset(tuple(weight.shape) for weight in module.parameters())) as live:
        out = run(x)
        kept, forward = live.live_bytes, live.peak_bytes
        gradient = torch.empty_like(out)
        live.reset_peak()
        out.backward(gradient)  # type: ignore[no-untyped-call]
        return kept, forward, live.peak_bytes


class Comparison(NamedTuple):
    """One part of the activations: bytes traced operation by operation, and bytes of the estimated terms."""

    name: str
    traced_bytes: float
    term_bytes: float


def sizes_of(setup: TrainSetup) -> Sizes:
    """The sizes of a training. For a chunked head of another program: one chunk of tokens over the whole
    vocabulary."""
    shape, in_chunks = setup.shape, setup.head.kind == "in_chunks"
    rows = setup.tokens if in_chunks else setup.head.chunk_tokens or setup.tokens
    sizes = ("vocab_size", "hidden_size", "heads", "kv_heads", "head_dim", "mlp_size", "qk_norm")
    return Sizes(
        **{name: getattr(shape, name) for name in sizes},
        tokens=setup.tokens,
        head_tokens=min(rows, setup.tokens),
        autocast=setup.numerics.autocast,
        in_place=setup.head.kind == "in_place",
        in_chunks=in_chunks,
        full_precision=setup.numerics.compute == _FP32_BYTES,
        fused=setup.program == "bundled",
    )


def compare_terms(setup: TrainSetup) -> tuple[Comparison, ...]:
    """Each traced part with its terms, both without compilation, because the traced code is not compiled.

    A head that is chunked over the vocabulary is not traced.
    """
    traced, setup = trace(sizes_of(setup)), setup._replace(compiled=False)
    k = fitted_entry(setup.program, setup.era).coefficients
    block = sum(term.bytes for term in block_terms(setup, k))
    parts = []
    if setup.checkpointing == "full":
        parts.append(Comparison("one block, recomputed, forward and backward", traced.block_peak_bytes, block))
    else:
        kept = kept_per_layer(setup, k) * setup.tokens
        parts.append(Comparison("one block, kept for the backward", traced.block_kept_bytes, kept))
    if setup.head.kind in ("full", "in_place", "in_chunks", "token_chunked"):
        logits = sum(term.bytes for term in logits_terms(setup, k))
        parts.append(Comparison("logits and loss", traced.head_peak_bytes, logits))
    return tuple(parts)


def _row(vocab_size: int, compute: Literal["bf16", "fp32"]) -> list[dict[str, Any]]:
    """The parts of a model of 1.3 billion parameters, four rows of 2048 tokens."""
    run = spec.RunSpec(
        run=spec.Run(name="trace", max_steps=1),
        model=spec.Model(layers=24, hidden_size=2048, heads=16, mlp_size=5632),
        data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=2048),
        batch=spec.Batch(micro_batch=4),
        precision=spec.Precision(compute=compute),
    )
    setup = setup_of(run, hardware_from_name("h100-80gb"), shape_from_run(run, vocab_size))
    rows = []
    for part in compare_terms(setup):
        error = round(part.term_bytes / part.traced_bytes - 1, 4)
        what = f"{part.name}, vocabulary of {vocab_size}, {compute}"
        rows.append(
            record.emit(what, [part.traced_bytes], unit="bytes", terms_bytes=round(part.term_bytes), error=error)
        )
    return rows


def main() -> None:
    rows = [row for size in _VOCABULARIES for compute in ("bf16", "fp32") for row in _row(size, compute)]
    record.write("activation_trace", rows)


if __name__ == "__main__":
    main()
