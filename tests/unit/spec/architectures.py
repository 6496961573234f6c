"""Architectures for tests: a small Llama, and what differs from it."""

from __future__ import annotations

from typing import Any

from prime_train.spec.decoder_size import Architecture

_SMALL = {
    "vocab_size": 64,
    "layers": 2,
    "hidden_size": 32,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 16,
    "mlp_size": 64,
    "tie_embeddings": True,
    "qk_norm": False,
}


def architecture(**changes: Any) -> Architecture:
    return Architecture(**_SMALL | changes)
