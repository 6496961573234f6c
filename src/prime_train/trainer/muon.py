"""Builds the optimizer of a run: AdamW, or Muon for the matrices of the blocks and AdamW for the rest. Takes no step.

Sources: Muon, https://kellerjordan.github.io/posts/muon; the size of its updates is that of AdamW's, so that both can
have one learning rate: Muon is Scalable for LLM Training, arXiv 2502.16982, s. 2.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import _muon

from prime_train import spec
from prime_train.trainer.loops.step import DECAYS, adamw
from prime_train.trainer.model.shards import local_part, rows_of

_BLOCKS = "blocks."


def build_optimizer(model: nn.Module, config: spec.Optim) -> torch.optim.Optimizer:
    """The optimizer of optim.kind. Each group has `lr_scale`, its learning rate as a multiple of optim.lr."""
    if config.kind == "adamw":
        return adamw(model, config)
    matrices: list[tuple[str, nn.Parameter]] = []
    rest: list[tuple[str, nn.Parameter]] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            is_matrix = _BLOCKS in name and weight.ndim == 2
            (matrices if is_matrix else rest).append((name, weight))
    settings: dict[str, Any] = {"weight_decay": config.weight_decay, "momentum": config.muon_momentum}
    muon = Muon([weight for _, weight in matrices], lr=config.lr, adjust_lr_fn="match_rms_adamw", **settings)
    for group in muon.param_groups:
        group |= {"lr_scale": _scale(config), DECAYS: True}
    return MuonAndAdamW(muon, adamw(rest, config)) if rest else muon  # adapters are matrices of blocks alone


def _scale(config: spec.Optim) -> float:
    """The rate of Muon as a multiple of optim.lr."""
    return 1.0 if config.muon_lr is None else config.muon_lr / config.lr


def adjust_optimizer(optimizer: torch.optim.Optimizer, config: spec.Optim) -> None:
    """Give an optimizer of `build_optimizer` the values that change while it trains; the rate comes with each step."""
    for group in optimizer.param_groups:
        if group[DECAYS]:
            group["weight_decay"] = config.weight_decay
        if "lr_scale" in group:
            group["lr_scale"] = _scale(config)


class Muon(torch.optim.Muon):
    """torch's Muon, also for the shards of FSDP2, and with a device that may skip the step (`found_inf`).

    torch 2.13 would sum bf16 parts, which round differently for each number of ranks. Here each rank gathers one matrix
    at a time and computes the same update, of which it keeps its shard.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step_matrix(weight, group)

    def _step_matrix(self, weight: Tensor, group: dict[str, Any]) -> None:
        """The update of torch.optim.Muon for one matrix, which may be sharded."""
        assert weight.grad is not None
        found_inf: Tensor | None = getattr(self, "found_inf", None)  # () fp32: 1 = skip the step
        state, gradient = self.state[weight], local_part(weight.grad)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        moment = state["momentum_buffer"]
        moved = local_part(moment).lerp(gradient, 1 - group["momentum"])
        update = gradient.lerp(moved, group["momentum"]) if group["nesterov"] else moved
        # Both functions are private in torch 2.13.
        whole = _gather_like(weight, update)  # (O, I)
        whole = _muon._zeropower_via_newtonschulz(whole, group["ns_coefficients"], group["ns_steps"], group["eps"])
        lr = _muon._adjust_lr(group["lr"], group["adjust_lr_fn"], weight.shape)
        part = local_part(weight)
        stepped = part.mul(1 - group["lr"] * group["weight_decay"]).add_(whole[rows_of(weight)], alpha=-lr)
        _replace(part, stepped, found_inf)
        _replace(local_part(moment), moved, found_inf)


def _gather_like(weight: Tensor, part: Tensor) -> Tensor:
    """The whole matrix of which `part` has the rows that this process holds of `weight`."""
    if not isinstance(weight, DTensor):
        return part
    return DTensor.from_local(
        part, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    ).full_tensor()


def _replace(old: Tensor, new: Tensor, found_inf: Tensor | None) -> None:
    """Write `new` into `old`, unless the step is skipped. The device decides, so the host waits for nothing."""
    old.copy_(new if found_inf is None else torch.where(found_inf > 0, old, new))


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimizers as one, so that a checkpoint has one state by the names of the weights."""

    def __init__(self, muon: Muon, rest: torch.optim.AdamW) -> None:
        self._parts: tuple[torch.optim.Optimizer, ...] = (muon, rest)
        super().__init__([*muon.param_groups, *rest.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step of both. A loaded state replaces groups and states, so both parts get them at each step."""
        del closure
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.found_inf = getattr(self, "found_inf", None)  # type: ignore[attr-defined]
            part.step()
