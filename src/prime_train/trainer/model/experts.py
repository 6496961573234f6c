"""A mixture of experts in the place of a block's MLP: a router, the experts, and shared experts. Reads no config file.

Every token is computed by its experts: none is dropped, and an expert may have no token. The load is balanced by a bias
for each expert, which the choice counts and the output does not, so no loss term works against the language model.
Sources: DeepSeek-V3, arXiv 2412.19437, s. 2.1.2; balance by bias, arXiv 2408.15664, algorithm 1.
Shapes: N tokens, C width of the residual stream, E experts, K experts of a token, I inner width of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from prime_train.spec.decoder_size import Architecture


class Router(nn.Module):
    """Chooses K experts for each token. `balance` is part of the weights, though no gradient changes it."""

    balance: Tensor | None  # (E,)
    counts: Tensor  # (E,) tokens of each expert in the forwards with gradients since `Routers.begin`
    z_scale: Tensor  # () weight of the z-loss of one token

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden_size))
        self.register_buffer("balance", torch.zeros(config.experts) if config.router == "sigmoid" else None)
        self.register_buffer("counts", torch.zeros(config.experts, dtype=torch.int64), persistent=False)
        self.register_buffer("z_scale", torch.zeros(()), persistent=False)
        self.has_z_loss = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (N, K) in fp32, as rounding changes a choice, numbers (N, K) of the experts, and counts (E,)."""
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.weight.float())  # (N, E)
            if self.has_z_loss:
                logits = cast(Tensor, _ZLoss.apply(logits, self.z_scale))  # type: ignore[no-untyped-call]
            weights, chosen = choose(logits, self.balance, self.config)  # (N, K)
        visits = chosen.flatten()  # (N x K,)
        counts = visits.new_zeros(self.config.experts).scatter_add_(0, visits, torch.ones_like(visits))
        if torch.is_grad_enabled():
            self.counts += counts
        return weights, chosen, counts


def choose(logits: Tensor, balance: Tensor | None, config: Architecture) -> tuple[Tensor, Tensor]:
    """The weights (..., K) and numbers (..., K) of the experts with the highest scores, from logits (..., E)."""
    if balance is None:
        weights, chosen = logits.softmax(-1).topk(config.experts_per_token, -1)  # (..., K)
    else:
        scores = logits.sigmoid()  # (..., E)
        chosen = (scores + balance).topk(config.experts_per_token, -1).indices  # (..., K)
        weights = scores.gather(-1, chosen)  # (..., K)
    if config.norm_expert_weights:  # a sum of sigmoids may round to 0
        weights = weights / (weights.sum(-1, keepdim=True) + (0.0 if balance is None else 1e-20))
    return weights * config.expert_scale if config.expert_scale != 1.0 else weights, chosen


class _ZLoss(torch.autograd.Function):
    """The logits as they are; backward adds the gradient of scale x sum of logsumexp(logits)^2.

    So the reported loss stays the cross-entropy. Source: ST-MoE, arXiv 2202.08906, s. 3.2, equation 5.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(logits, scale)
        return logits.view_as(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, scale = ctx.saved_tensors
        size = logits.logsumexp(-1, keepdim=True)  # (N, 1)
        return grad + 2 * scale * size * (logits - size).exp(), None  # (N, E)


class Experts(nn.Module):
    """The SwiGLU experts of a block, each weight stacked over the experts."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        inner, width = config.expert_mlp_size, config.hidden_size
        self.gate_up = nn.Parameter(torch.empty(config.experts, 2 * inner, width))  # (E, 2 x I, C)
        self.down = nn.Parameter(torch.empty(config.experts, width, inner))  # (E, C, I)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """`x` (N x K, C) is sorted by expert; `ends` (E,) int32 is the row at which each expert's rows end."""
        # grouped_mm is not among the operations that autocast converts (torch 2.13). Where a GPU has no kernel of it
        # for the type, which is bf16 on sm_90 and later, it copies `ends` to the host, which waits for the GPU.
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.down.dtype
        gate_up, down = (weight.to(dtype).transpose(1, 2) for weight in (self.gate_up, self.down))
        gate, up = F.grouped_mm(x.to(dtype), gate_up, offs=ends).chunk(2, -1)  # (N x K, I)
        return F.grouped_mm(F.silu(gate) * up, down, offs=ends)  # (N x K, C)


class Mixture(nn.Module):
    """The experts that the router chooses, weighted, and the shared experts `shared`."""

    def __init__(self, config: Architecture, shared: nn.Module | None) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # (N, C)
        weights, chosen, counts = self.router(tokens)
        order = chosen.flatten().argsort(stable=True)  # (N x K,) by expert, then by token
        # A copy for each expert, so that the gradients of a token are added in one order.
        copies = tokens.unsqueeze(1).expand(-1, chosen.shape[1], -1).flatten(0, 1)  # (N x K, C)
        mixed = self.experts(copies.index_select(0, order), counts.cumsum(0).int())  # (N x K, C)
        mixed = mixed.index_select(0, order.argsort()).unflatten(0, chosen.shape)  # (N, K, C)
        out = (mixed * weights.unsqueeze(-1).to(mixed.dtype)).sum(1).view(x.shape)  # (B, T, C)
        return cast(Tensor, out if self.shared is None else out + self.shared(x))


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How the tokens of a step were spread, over all ranks and padding included: columns of metrics.jsonl."""

    expert_tokens_min: tuple[int, ...]  # of the least visited expert of each block
    expert_tokens_max: tuple[int, ...]  # of the most visited one
    expert_load_max: float  # tokens of the most visited expert of all blocks, divided by the mean
    idle_experts: int  # without a token, in all blocks


def read_load(numbers: Sequence[float]) -> ExpertLoad:
    """The load from the numbers that `Routers.end` returned, on the host."""
    *tokens, idle, mean = numbers
    blocks = len(tokens) // 2
    least, most = tuple(map(int, tokens[:blocks])), tuple(map(int, tokens[blocks:]))
    return ExpertLoad(least, most, max(most) / mean, int(idle))


class Summed(Protocol):
    """The processes of a run."""

    def sum(self, values: Tensor) -> Tensor: ...


class Routers:
    """The routers of a model, between the steps."""

    def __init__(self, model: nn.Module, balance_rate: float, z_loss: float) -> None:
        self._routers = [module for module in model.modules() if isinstance(module, Router)]
        self._balance_rate = balance_rate
        self._z_loss = z_loss
        for router in self._routers:
            router.has_z_loss = z_loss > 0

    def begin(self, loss_scale: Tensor) -> None:
        """Start a step whose loss is multiplied by `loss_scale`, 0-d. The tokens of a step that failed are dropped."""
        for router in self._routers:
            router.counts.zero_()
            router.z_scale.copy_(loss_scale * self._z_loss)

    @torch.no_grad()
    def end(self, world: Summed, positions: int, skip: Tensor) -> Tensor:
        """Move each bias towards the mean load; returns the numbers of `read_load`, (2 x blocks + 2,) fp64.

        Call it on every rank after the update. `positions`: tokens of this rank; `skip`: 0-d bool, the biases stay. A
        forward that is repeated for its activations counts twice, so the counts are scaled to the tokens of the step.
        """
        per_block = [router.counts for router in self._routers]
        total = per_block[0].new_full((1,), positions * self._routers[0].config.experts_per_token)
        summed = world.sum(torch.cat((*per_block, total)))
        counts = summed[:-1].view(len(per_block), -1)  # (blocks, E)
        mean = counts.double().mean(-1, keepdim=True)  # (blocks, 1)
        steps = self._balance_rate * (mean - counts).sign().float() * ~skip  # (blocks, E)
        for router, step in zip(self._routers, steps, strict=True):
            if router.balance is not None:
                router.balance += step
        tokens = counts * summed[-1] // counts.sum(-1, keepdim=True).clamp(min=1)  # (blocks, E)
        idle, of_expert = (tokens == 0).sum().view(1), summed[-1:].double() / tokens.shape[1]  # (1,), (1,)
        return torch.cat((tokens.amin(-1), tokens.amax(-1), idle, of_expert))


def find_routers(model: nn.Module, balance_rate: float, z_loss: float) -> Routers | None:
    """The routers of a model; None if it has no experts."""
    found = any(isinstance(module, Router) for module in model.modules())
    return Routers(model, balance_rate, z_loss) if found else None
