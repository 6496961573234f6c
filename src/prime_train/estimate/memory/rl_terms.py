"""Counts memory that the bundled trainer holds for reinforcement learning beside the training itself. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.estimate.memory.sharding import groups_of
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Term
from prime_train.spec import Rl, RunSpec
from prime_train.spec.answers import policy_of, rollout_engine

_WEIGHT_BYTES = 4.0
_REFERENCE = "prime_train/trainer/rl/learning/reference.py"
_ENGINE = "prime_train/trainer/rl/engines/local_engine.py"
_SETS = 2  # of weights and of slots: answers that began before an update are completed beside those after it
_UNREAD_TOKENS = 7  # that a slot holds beyond the context, because the host reads the tokens of 8 steps together
_PADDED_TOKENS = 64  # the positions of a slot are a multiple of it


def rl_terms(run: RunSpec, shape: ModelShape, number_bytes: float) -> tuple[Term, ...]:
    """The reference model and the trainer's own engine, on each GPU; none for a run without rewards.

    `number_bytes` is the size of a number of the engine.
    """
    policy = policy_of(run)
    return () if policy is None else tuple(_list_terms(run, policy, shape, number_bytes))


def _list_terms(run: RunSpec, policy: Rl, shape: ModelShape, number_bytes: float) -> Iterator[Term]:
    if policy.kl_coef:
        parts = max(1, run.parallel.dp_shard)
        formula = f"{shape.parameters / 1e6:.1f} M x {_WEIGHT_BYTES:g} B / {parts}"
        yield Term("reference model", shape.parameters * _WEIGHT_BYTES / parts, formula, _REFERENCE)
    if rollout_engine(run) == "local":
        yield _weights_term(shape, number_bytes)
        yield _cache_term(run, policy, shape, number_bytes)


def _weights_term(shape: ModelShape, number_bytes: float) -> Term:
    """Embedding in fp32, and everything else in the engine's type, the head also where it is tied to the embedding."""
    groups = groups_of(shape)
    blocks = groups.total - groups.embedding - groups.head
    others = blocks + groups.root
    size = _SETS * (groups.embedding * _WEIGHT_BYTES + others * number_bytes)
    embedding = f"{groups.embedding / 1e6:.1f} M x {_WEIGHT_BYTES:g} B"
    return Term(
        "engine's weights", size, f"{_SETS} x ({embedding} + {others / 1e6:.1f} M x {number_bytes:g} B)", _ENGINE
    )


def _cache_term(run: RunSpec, policy: Rl, shape: ModelShape, number_bytes: float) -> Term:
    slot = math.ceil((run.data.ctx_tokens + _UNREAD_TOKENS) / _PADDED_TOKENS) * _PADDED_TOKENS
    tokens = _SETS * policy.concurrency * slot
    each = 2 * shape.layers * shape.kv_heads * shape.head_dim * number_bytes
    return Term("engine's KV cache", tokens * each, f"{tokens:,} tokens x {each:g} B", _ENGINE)
