"""Changes how a Decoder's blocks compute: linear layers in fp8, activations again in the backward. Changes no weight.

A layer in fp8 casts its input, its weight and the gradient of its output to 8 bits at each product, with scales from
their largest numbers; results are bf16 and weights stay fp32. Not measured on a GPU: docs/gpu.md.
Sources: FP8 Formats for Deep Learning, arXiv 2209.05433; torchao.float8 (0.18); recompute, arXiv 1604.06174; selective,
which keeps what is dear to compute: arXiv 2205.05198, s. 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.spec import FP8_CAPABILITY
from prime_train.spec.hf_config import FP8_MULTIPLE
from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import Decoder

Scales = Literal["tensorwise", "rowwise"]
_KEPT = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm"})
_ATTENTION = ("_scaled_dot_product", "_varlen_attn", "flex_attention")  # beginnings of operator names


def recompute_blocks(model: Decoder, config: spec.Model) -> None:
    """Let every `recompute_every`-th block drop activations. Call it before the blocks are compiled or sharded."""
    if config.recompute == "none":
        return
    # torch.compile refuses torch's own function for a context without effect (2.13), so "full" has none.
    keep_products = {"context_fn": partial(create_selective_checkpoint_contexts, _choose)}
    context: dict[str, Any] = {} if config.recompute == "full" else keep_products
    for block in list(model.blocks)[:: config.recompute_every]:
        # A block has no dropout, so the generators need not be as they were in the forward.
        again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, **context)
        block.forward = _call(again)


def _call(again: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this module that calls `again`: torch.compile skips a block that begins in torch's own (2.13)."""

    def recomputed(*arguments: Any) -> Any:
        return again(*arguments)

    return recomputed


def _choose(_context: Any, operator: Any, *_arguments: Any, **_options: Any) -> CheckpointPolicy:
    """Keep the results of matrix products and of attention; compute norms, rotations and products of numbers again."""
    name = operator.__name__.split(".")[0] if isinstance(operator, torch._ops.OpOverload) else str(operator)
    is_dear = name in _KEPT or name.startswith(_ATTENTION)
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE


def require_fp8(device: Device) -> None:
    """UserError unless the device computes in fp8, with bf16 results, and torchao is installed."""
    where, none = "precision.fp8", 'precision.fp8 = "none"'
    if device.torch.type != "cuda":
        raise UserError("fp8 on a CPU", where, "only GPUs have matrix products in fp8", none)
    capability = torch.cuda.get_device_capability(device.torch)
    if capability < FP8_CAPABILITY:
        what = f"fp8 on {device.name}, whose compute capability is {capability[0]}.{capability[1]}"
        raise UserError(what, where, f"fp8 products need {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]}", none)
    if device.compute != "bf16":
        what = f"fp8 with {device.compute}"
        raise UserError(what, where, "the results of fp8 products are bf16", 'precision.compute = "bf16"')
    if find_spec("torchao") is None:
        why = "fp8 products and their casts are torchao's"
        raise UserError("torchao is not installed", where, why, install_command("fp8"))


def convert_blocks(model: Decoder, scales: Scales, *, emulate: bool = False) -> None:
    """Convert every linear layer that fits, before the blocks are recomputed, compiled or sharded.

    Gathers stay in bf16: in fp8 they need weights of torchao's type. `emulate`: round to fp8, multiply in fp32.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(Float8LinearConfig.from_recipe_name(scales), emulate=emulate)
    convert_to_float8_training(model.blocks, config=config, module_filter_fn=lambda layer, _name: _fits(layer))


def describe_layers(model: Decoder) -> str:
    """How many layers are in fp8, for TrainerStarted."""
    layers = [*linear_layers(model)]
    return f"fp8 in {sum(map(_fits, layers))} of {len(layers)} linear layers of the blocks"


def linear_layers(model: Decoder) -> Iterator[nn.Linear]:
    """The linear layers of the blocks. Neither routers nor stacked experts are any."""
    for layer in model.blocks.modules():
        if isinstance(layer, nn.Linear):
            yield layer


def _fits(layer: nn.Module) -> bool:
    """Whether torch._scaled_mm takes the sizes of a linear layer, in the forward and in the backward."""
    assert isinstance(layer, nn.Linear)
    return layer.in_features % FP8_MULTIPLE == 0 == layer.out_features % FP8_MULTIPLE
