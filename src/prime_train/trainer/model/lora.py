"""Low-rank adapters on the linear layers of a Decoder. Reads and writes no file.

The weights of an adapted layer keep their names and are frozen, so every other part sees the Decoder it knows; an
adapter adds `lora_down` and `lora_up` beside a layer's `weight`. Source: LoRA, arXiv 2106.09685, s. 4.1.
Shapes: I inputs and O outputs of a layer, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prime_train.spec.rl import Adapter
from prime_train.trainer import seed
from prime_train.trainer.model.decoder import ADAPTERS, Decoder
from prime_train.trainer.model.shards import copy_rows, local_part

_DOWN, _UP = ADAPTERS


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus `scale` times its adapter, whose values `initialise_adapters` gives."""

    bias: nn.Parameter | None

    def __init__(self, layer: nn.Linear, adapter: Adapter) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)  # (O, I)
        bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)  # (O,)
        self.register_parameter("bias", bias)
        self.scale = adapter.alpha / adapter.rank
        outer, inner = layer.weight.shape
        self.lora_down = nn.Parameter(layer.weight.new_empty(adapter.rank, inner))  # (R, I)
        self.lora_up = nn.Parameter(layer.weight.new_empty(outer, adapter.rank))  # (O, R)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_down), self.lora_up)


def add_adapters(model: Decoder, adapter: Adapter, run_seed: int) -> None:
    """Freeze the model and give each target layer of each block an adapter. Call it before the model is spread."""
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        for part in (block.attention, block.mlp):
            for name, layer in list(cast(nn.Module, part).named_children()):
                if name in adapter.targets and isinstance(layer, nn.Linear):
                    setattr(part, name, AdaptedLinear(layer, adapter))
    initialise_adapters(model, run_seed)


@torch.no_grad()
def initialise_adapters(model: Decoder, run_seed: int) -> None:
    """Let every adapter begin as zero, the lower matrix uniform as in nn.Linear. Each process fills its own rows."""
    generator = torch.Generator().manual_seed(seed.mix(run_seed, "lora"))
    for layer in model.modules():
        if isinstance(layer, AdaptedLinear):
            bound = 1 / math.sqrt(layer.lora_down.shape[1])
            down = torch.empty(layer.lora_down.shape).uniform_(-bound, bound, generator=generator)  # (R, I)
            copy_rows(layer.lora_down, down)
            local_part(layer.lora_up).zero_()


def find_scale(model: nn.Module) -> float | None:
    """What the adapters of a model are multiplied by; None if it has none."""
    return next((layer.scale for layer in model.modules() if isinstance(layer, AdaptedLinear)), None)


def has_adapters(names: Iterable[str]) -> bool:
    """Whether a state dict with these names has adapters."""
    return any(name.endswith((_DOWN, _UP)) for name in names)


def parts_of(name: str, weights: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the adapter on the weight `name`; () where it has none."""
    layer = name.rpartition(".")[0]
    parts = f"{layer}.{_DOWN}", f"{layer}.{_UP}"
    return parts if parts[1] in weights and name.endswith(".weight") else ()


@torch.no_grad()
def merge_adapters(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of a plain Decoder: each adapted weight plus its scaled adapter. `weights`: a gathered state dict."""
    merged = {name: weight for name, weight in weights.items() if not name.endswith((_DOWN, _UP))}
    for name, up in weights.items():
        layer, _, last = name.rpartition(".")
        if last == _UP:
            weight = merged[f"{layer}.weight"]
            change = up.float() @ weights[f"{layer}.{_DOWN}"].float()  # (O, I)
            merged[f"{layer}.weight"] = (weight.float() + scale * change).to(weight.dtype)
    return merged
