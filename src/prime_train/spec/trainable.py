"""Judges whether the bundled trainer can train an architecture with the settings of a run. Pure, without torch.

The rules ask before a run and the trainer asks again, because a folder may have changed between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.spec.decoder_size import Architecture
from prime_train.spec.hf_config import find_context_limit, find_model_type

_ALIGNED = 8  # numbers of 16 bytes in bf16: F.grouped_mm needs rows that begin at multiples of 16 bytes (torch 2.13)


class SettingConflict(NamedTuple):
    """A setting that the architecture does not allow. `value`: one that it allows; None = take the key out."""

    at: str  # RunSpec field
    what: str
    why: str
    value: object


def find_conflicts(run: RunSpec, sizes: Architecture) -> Iterator[SettingConflict]:
    """The conflicts of an architecture; its experts are judged first, because their sizes are used by the others."""
    if sizes.experts:
        yield from _judge_experts(run, sizes)
    limit = find_context_limit(sizes)
    if limit is not None and run.data.ctx_tokens > limit[0]:
        what = f"{run.data.ctx_tokens} tokens, and the model has {limit[0]}"
        yield SettingConflict("data.ctx_tokens", what, limit[1], limit[0])


def _judge_experts(run: RunSpec, sizes: Architecture) -> Iterator[SettingConflict]:
    if sizes.experts_per_token > sizes.experts:
        what = f"{sizes.experts_per_token} is more than the {sizes.experts} experts of a block"
        yield SettingConflict("model.experts_per_token", what, "a token visits each expert at most once", sizes.experts)
    if not find_model_type(sizes):
        what = '"softmax" without `model.qk_norm`' if not sizes.qk_norm else '"softmax" with shared experts'
        why = "Qwen3-MoE, the family with this router, has query and key norms and no shared experts"
        yield SettingConflict("model.router", what, why, "sigmoid")
    for name, size in (("hidden_size", sizes.hidden_size), ("expert_mlp_size", sizes.expert_mlp_size)):
        if size % _ALIGNED:
            why = "grouped matrix products read rows that begin at multiples of 16 bytes"
            fitting = -(-size // _ALIGNED) * _ALIGNED
            yield SettingConflict(
                f"model.{name}", f"{size} is not a multiple of {_ALIGNED}, with experts", why, fitting
            )
    shards = run.parallel.dp_shard
    if sizes.experts % shards:
        fitting = max(number for number in range(1, shards) if sizes.experts % number == 0 and shards % number == 0)
        what = f"{sizes.experts} experts do not divide by {shards} processes"
        why = "FSDP2 gives each process a part of the experts, and an uneven part leaves memory unused on the others"
        yield SettingConflict("parallel.dp_shard", what, why, fitting)
    if run.model.lora is not None:
        targets = run.model.lora.targets
        kept = [name for name in targets if name not in ("gate", "up", "down")]
        if len(kept) < len(targets):
            why = "the weights of the experts are stacked, and adapters are for single linear layers"
            fitting_targets = kept or ["query", "value"]
            yield SettingConflict("model.lora.targets", "gate, up and down of experts", why, fitting_targets)


FP8_MULTIPLE = 16  # of both sizes of a matrix, and of the tokens of a micro-batch: torch._scaled_mm (torch 2.13)


def find_fp8_conflicts(run: RunSpec) -> Iterator[SettingConflict]:
    """The settings of a run that do not go with precision.fp8 in any architecture."""
    if run.precision.fp8 == "none":
        return
    given = f'"{run.precision.fp8}"'
    if policy_of(run) is not None:
        why = "the update compares log-probabilities with those of an engine, which does not compute in fp8"
        yield SettingConflict("precision.fp8", f'{given}, and `run.kind` is "rl"', why, "none")
    if run.model.lora is not None:
        why = "torchao converts plain linear layers, and a layer with an adapter is none"
        yield SettingConflict("precision.fp8", f"{given}, and `model.lora` is set", why, "none")
    if run.precision.compute == "fp32":
        what = f'"fp32", and `precision.fp8` is {given}'
        yield SettingConflict("precision.compute", what, "the results of fp8 products are bf16", "bf16")
    ctx_tokens = run.data.ctx_tokens
    if ctx_tokens % FP8_MULTIPLE:
        what = f"{ctx_tokens} is not a multiple of {FP8_MULTIPLE}, with `precision.fp8`"
        why = "the gradient of a weight is a product over the tokens of a micro-batch"
        yield SettingConflict("data.ctx_tokens", what, why, max(1, ctx_tokens // FP8_MULTIPLE) * FP8_MULTIPLE)


def find_fp8_size_conflict(run: RunSpec, sizes: Architecture) -> Iterator[SettingConflict]:
    """A conflict if precision.fp8 could convert no layer: one side of each is the width of the model."""
    if run.precision.fp8 == "none":
        return
    mlp_size = sizes.shared_mlp_size if sizes.experts else sizes.mlp_size
    others = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, mlp_size)
    if sizes.hidden_size % FP8_MULTIPLE or all(size % FP8_MULTIPLE for size in others if size):
        what = (
            f'"{run.precision.fp8}", and no linear layer of a block has two sizes that are multiples of {FP8_MULTIPLE}'
        )
        why = f"the width is {sizes.hidden_size}; other layers stay in bf16, so nothing would be computed in fp8"
        yield SettingConflict("precision.fp8", what, why, "none")
