"""Counts memory that the bundled trainer holds for reinforcement learning beside the training itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Term
from prime_train.spec import Rl, RunSpec
from prime_train.spec.answers import policy_of, rollout_engine

_WEIGHT_BYTES = 4.0
_REFERENCE = "prime_train/trainer/rl/learning/reference.py"
_ENGINE = "prime_train/trainer/rl/engines/local_engine.py"


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
        formula = f"{shape.parameters / 1e6:.1f} M x {number_bytes:g} B"
        yield Term("engine's weights", shape.parameters * number_bytes, formula, _ENGINE)
        tokens = policy.concurrency * run.data.ctx_tokens
        each = 2 * shape.layers * shape.kv_heads * shape.head_dim * number_bytes
        yield Term("engine's KV cache", tokens * each, f"{tokens:,} tokens x {each:g} B", _ENGINE)
