"""The grouped product of a mixture of experts beside one product for each expert; one expert has no token."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu.bench import Bench
from gpu.training import pick_device
from prime_train import spec
from prime_train.trainer.model.decoder import config_of
from prime_train.trainer.model.experts import Experts

COUNTS = (700, 0, 13, 1, 300, 0, 2000, 82)  # tokens of each expert
TINY_COUNTS = (5, 0, 3, 1)


def measure(bench: Bench) -> None:
    with bench.case("grouped product"):
        counts = torch.tensor(TINY_COUNTS if bench.tiny else COUNTS)
        width, inner = (32, 16) if bench.tiny else (512, 256)
        sizes = spec.Model(
            layers=1, hidden_size=width, heads=4, experts=len(counts), experts_per_token=2, expert_mlp_size=inner
        )
        torch.manual_seed(7)
        device = pick_device(bench).torch
        experts = Experts(replace(config_of(sizes, 64))).to(device)
        for weight in experts.parameters():
            torch.nn.init.normal_(weight, std=0.05)
        x = torch.randn(int(counts.sum()), width, device=device)  # (N x K, C)
        with torch.autocast(device.type, torch.bfloat16, enabled=bench.on_gpu):
            out = experts(x, counts.cumsum(0).int().to(device))  # (N x K, C)
        out.float().square().sum().backward()
        found = out.detach().float()
        expected = _each_alone(experts, x, counts.tolist(), torch.bfloat16 if bench.on_gpu else torch.float32)
        assert experts.down.grad is not None
        idle = [number for number, count in enumerate(counts.tolist()) if count == 0]
        bench.emit(
            "grouped product",
            error=float((found - expected).norm() / expected.norm()),
            gradient_is_finite=bool(experts.down.grad.isfinite().all()),
            idle_gradient=float(experts.down.grad[idle].abs().sum()),
        )


@torch.no_grad()
def _each_alone(experts: Experts, x: Tensor, counts: list[int], dtype: torch.dtype) -> Tensor:
    rows, start = [], 0
    for number, count in enumerate(counts):
        own = x[start : start + count].to(dtype)
        gate, up = (own @ experts.gate_up[number].T.to(dtype)).chunk(2, -1)
        rows.append((F.silu(gate) * up) @ experts.down[number].T.to(dtype))
        start += count
    return torch.cat(rows).float()
