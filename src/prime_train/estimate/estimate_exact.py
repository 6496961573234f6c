"""Says what `--exact` is to trace of a training, and holds what it counted against the terms. Pure; traces nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.estimate import activations, head
from prime_train.estimate.coefficients import fitted
from prime_train.estimate.train_setup import TrainSetup

_FP32_BYTES = 4
_FAMILIES = "a dense decoder with gated MLPs, on one GPU of a tensor-parallel group of one"


class Compared(NamedTuple):
    """One part of the activations: bytes as traced, operation by operation, and as the terms have them."""

    name: str
    traced_bytes: float
    term_bytes: float


def unfit(setup: TrainSetup) -> str:
    """Why a training cannot be traced; "" where it can."""
    shape = setup.shape
    if shape.is_moe or not shape.gated_mlp or shape.kv_lora_rank or shape.linear_layers:
        return f"{shape.name} is no such model: traced is {_FAMILIES}"
    if setup.layout.tensor > 1:
        return f"tensor parallelism of {setup.layout.tensor}: traced is {_FAMILIES}"
    return ""


def question(setup: TrainSetup) -> dict[str, int | bool]:
    """What the tracing program is asked. Of a head in chunks, one chunk of tokens over the whole vocabulary."""
    shape = setup.shape
    rows = setup.head.chunk_tokens or setup.tokens
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "mlp_size": shape.mlp_size,
        "qk_norm": shape.qk_norm,
        "tokens": setup.tokens,
        "head_tokens": min(rows, setup.tokens),
        "autocast": setup.numerics.autocast,
        "in_place": setup.head.kind == "in_place",
        "full_precision": setup.numerics.compute == _FP32_BYTES,
        "fused": setup.program == "bundled",
    }


def compared(setup: TrainSetup, answer: Mapping[str, int]) -> tuple[Compared, ...]:
    """Each part that is traced beside its terms, both without compilation, for what is traced is not compiled.

    A head that is cut over the vocabulary is not traced.
    """
    setup = setup._replace(compiled=False)
    k = fitted(setup.program, setup.era).coefficients
    block = sum(term.bytes for term in activations.block(setup, k))
    parts = []
    if setup.checkpointing == "full":
        parts.append(Compared("one block, recomputed, forward and backward", answer["block_peak_bytes"], block))
    else:
        kept = activations.kept_per_layer(setup, k) * setup.tokens
        parts.append(Compared("one block, kept for the backward", answer["block_kept_bytes"], kept))
    if setup.head.kind in ("full", "in_place", "token_chunked"):
        logits = sum(term.bytes for term in head.logits(setup, k))
        parts.append(Compared("logits and loss", answer["head_peak_bytes"], logits))
    return tuple(parts)
