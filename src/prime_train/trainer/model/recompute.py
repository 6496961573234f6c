"""Computes activations of blocks again in the backward instead of keeping them. Changes no weight and no name.

Sources: arXiv 1604.06174; selective, which keeps what is dear to compute: arXiv 2205.05198, s. 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from prime_train import spec
from prime_train.trainer.model.decoder import Decoder

_KEPT = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm"})
_ATTENTION = ("_scaled_dot_product", "_varlen_attn", "flex_attention")  # beginnings of operator names


def recompute_blocks(model: Decoder, config: spec.Model) -> None:
    """Let every `recompute_every`-th block drop its activations, all of them or those that are cheap to compute.

    Call it before the blocks are compiled or sharded.
    """
    if config.recompute == "none":
        return
    # torch.compile refuses torch's own function for a context without effect (2.13), so "full" has none.
    context: dict[str, Any] = {} if config.recompute == "full" else {"context_fn": _keep_products}
    for block in list(model.blocks)[:: config.recompute_every]:
        # A block has no dropout, so the generators need not be as they were in the forward.
        again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, **context)
        block.forward = _call(again)


def _call(again: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this module that calls `again`: torch.compile skips a block that begins in torch's own (2.13)."""

    def recomputed(*arguments: Any) -> Any:
        return again(*arguments)

    return recomputed


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_choose)  # type: ignore[no-untyped-call]


def _choose(_context: Any, operator: Any, *_arguments: Any, **_options: Any) -> CheckpointPolicy:
    """Keep the results of matrix products and of attention; compute norms, rotations and products of numbers again."""
    name = operator.__name__.split(".")[0] if isinstance(operator, torch._ops.OpOverload) else str(operator)
    is_dear = name in _KEPT or name.startswith(_ATTENTION)
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE
