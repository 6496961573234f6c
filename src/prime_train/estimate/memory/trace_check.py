"""Prepares the tracing of `--exact` and compares its byte counts with the estimated terms. Pure; traces nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.estimate.memory.activations import block_terms, kept_per_layer, logits_terms
from prime_train.estimate.memory.coefficients import fitted_entry
from prime_train.estimate.memory.train_setup import TrainSetup

_FP32_BYTES = 4
_FAMILIES = "a dense decoder with gated MLPs, on one GPU of a tensor-parallel group of one"


class Comparison(NamedTuple):
    """One part of the activations: bytes traced operation by operation, and bytes of the estimated terms."""

    name: str
    traced_bytes: float
    term_bytes: float


def why_not_traceable(setup: TrainSetup) -> str:
    """Why a training cannot be traced; "" if it can."""
    shape = setup.shape
    if shape.is_moe or not shape.gated_mlp or shape.kv_lora_rank or shape.linear_layers:
        return f"{shape.name} is another kind of model: only {_FAMILIES} can be traced"
    if setup.layout.tensor > 1:
        return f"tensor parallelism of {setup.layout.tensor}: only {_FAMILIES} can be traced"
    return ""


def trace_input(setup: TrainSetup) -> dict[str, int | bool]:
    """The input of the tracing program. For a chunked head of another program: one chunk of tokens over the whole
    vocabulary."""
    shape, in_chunks = setup.shape, setup.head.kind == "in_chunks"
    rows = setup.tokens if in_chunks else setup.head.chunk_tokens or setup.tokens
    sizes = ("vocab_size", "hidden_size", "heads", "kv_heads", "head_dim", "mlp_size", "qk_norm")
    return {
        **{name: getattr(shape, name) for name in sizes},
        "tokens": setup.tokens,
        "head_tokens": min(rows, setup.tokens),
        "autocast": setup.numerics.autocast,
        "in_place": setup.head.kind == "in_place",
        "in_chunks": in_chunks,
        "full_precision": setup.numerics.compute == _FP32_BYTES,
        "fused": setup.program == "bundled",
    }


def compare_terms(setup: TrainSetup, answer: Mapping[str, int]) -> tuple[Comparison, ...]:
    """Each traced part with its terms, both without compilation, because the traced code is not compiled.

    A head that is chunked over the vocabulary is not traced.
    """
    setup = setup._replace(compiled=False)
    k = fitted_entry(setup.program, setup.era).coefficients
    block = sum(term.bytes for term in block_terms(setup, k))
    parts = []
    if setup.checkpointing == "full":
        parts.append(Comparison("one block, recomputed, forward and backward", answer["block_peak_bytes"], block))
    else:
        kept = kept_per_layer(setup, k) * setup.tokens
        parts.append(Comparison("one block, kept for the backward", answer["block_kept_bytes"], kept))
    if setup.head.kind in ("full", "in_place", "in_chunks", "token_chunked"):
        logits = sum(term.bytes for term in logits_terms(setup, k))
        parts.append(Comparison("logits and loss", answer["head_peak_bytes"], logits))
    return tuple(parts)
