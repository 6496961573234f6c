"""Lets torchao compute the linear layers of a Decoder's blocks in fp8. Changes no weight and no name.

A converted layer casts its input, its weight and the gradient of its output to 8 bits at each product, with scales from
their largest numbers; results are bf16 and weights stay fp32. Sources: FP8 Formats for Deep Learning, arXiv 2209.05433;
torchao.float8 (0.18). Not measured on a GPU: docs/gpu.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.spec import FP8_CAPABILITY
from prime_train.spec.hf_config import FP8_MULTIPLE
from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import Decoder

Scales = Literal["tensorwise", "rowwise"]


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
    """Convert every layer of `linear_layers` that fits. Call it before blocks are recomputed, compiled or sharded.

    The gathers of FSDP2 stay in bf16: gathers in fp8 would need weights of a type of torchao, also in checkpoints.
    `emulate`: round to fp8 and multiply in fp32, which any device can.
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
