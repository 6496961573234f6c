"""Judges whether a run can train with precision.fp8. Pure, without torch.

The rules ask before a run and the trainer asks again, because a folder may have changed between the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.spec.decoder_size import Architecture
from prime_train.spec.trainable import Conflict

FP8_MULTIPLE = 16  # of both sizes of a matrix, and of the tokens of a micro-batch: torch._scaled_mm (torch 2.13)


def find_fp8_conflicts(run: RunSpec) -> Iterator[Conflict]:
    """The settings of a run that do not go with precision.fp8 in any architecture."""
    if run.precision.fp8 == "none":
        return
    given = f'"{run.precision.fp8}"'
    if policy_of(run) is not None:
        why = "the update compares log-probabilities with those of an engine, which does not compute in fp8"
        yield Conflict("precision.fp8", f'{given}, and `run.kind` is "rl"', why, "none")
    if run.model.lora is not None:
        why = "torchao converts plain linear layers, and a layer with an adapter is none"
        yield Conflict("precision.fp8", f"{given}, and `model.lora` is set", why, "none")
    if run.precision.compute == "fp32":
        what = f'"fp32", and `precision.fp8` is {given}'
        yield Conflict("precision.compute", what, "the results of fp8 products are bf16", "bf16")
    ctx_tokens = run.data.ctx_tokens
    if ctx_tokens % FP8_MULTIPLE:
        what = f"{ctx_tokens} is not a multiple of {FP8_MULTIPLE}, with `precision.fp8`"
        why = "the gradient of a weight is a product over the tokens of a micro-batch"
        yield Conflict("data.ctx_tokens", what, why, max(1, ctx_tokens // FP8_MULTIPLE) * FP8_MULTIPLE)


def find_fp8_size_conflict(run: RunSpec, sizes: Architecture) -> Iterator[Conflict]:
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
        yield Conflict("precision.fp8", what, why, "none")
