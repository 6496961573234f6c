"""FlashAttention of packed rows beside a dense mask in fp32: outputs and gradients, also with shared and narrow heads.

On a CPU the definition of torch's kernels stands for them, so that the calls are those of a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor

from gpu.bench import Bench
from gpu.training import pick_device
from prime_train.trainer.device import Device
from prime_train.trainer.model.attention import Plan, attend, block_causal_mask, move_plan, plan_attention

TOLERANCE = 1.5e-2  # bf16 has 8 bits, and a gradient is a sum of products of two rounded numbers


class Heads(NamedTuple):
    heads: int
    kv_heads: int
    width: int
    rows: int
    tokens: int


SIZES = (  # GPT-2; shared heads; a large model; widths that are no power of two, or no multiple of 8
    Heads(12, 12, 64, 4, 1024),
    Heads(8, 2, 64, 2, 2048),
    Heads(32, 8, 128, 1, 4096),
    Heads(8, 4, 80, 2, 512),
    Heads(6, 2, 20, 2, 300),
)
TINY = (Heads(4, 4, 64, 2, 96), Heads(4, 1, 80, 1, 64), Heads(6, 2, 20, 2, 60))


def measure(bench: Bench) -> None:
    if bench.on_gpu:
        device = pick_device(bench)
    else:
        import_module("tests.system.trainer.varlen_on_cpu")
        device = Device(torch.device("cpu"), "CPU", "bf16", None, flash_attention=True)
    for size in TINY if bench.tiny else SIZES:
        what = f"{size.heads}/{size.kv_heads} heads of {size.width}, {size.rows} x {size.tokens} tokens"
        with bench.case(what):
            _compare(bench, what, size, device)


def _compare(bench: Bench, what: str, size: Heads, device: Device) -> None:
    documents = (torch.arange(size.tokens) * 7 // size.tokens).repeat(size.rows, 1)  # (B, T)
    documents[:, -3:] = 9  # padding
    plan, _ = move_plan(plan_attention(documents, None, device), (), device.torch)
    draw = torch.Generator(device.torch).manual_seed(7)
    inputs = [_draw(size, heads, draw) for heads in (size.heads, size.kv_heads, size.kv_heads)]
    weights = _draw(size, size.heads, draw).detach().float()  # so that each output counts differently
    found = _results(inputs, plan, weights)
    exact = [tensor.detach().float().requires_grad_() for tensor in inputs]
    expected = _results(exact, block_causal_mask(documents).to(device.torch), weights)
    errors = [_difference(one, other) for one, other in zip(found, expected, strict=True)]
    bench.emit(
        what,
        error=max(errors),
        errors=dict(zip(("output", "query", "key", "value"), errors, strict=True)),
        ok=max(errors) <= TOLERANCE,
    )
    if bench.on_gpu:
        query, key, value = inputs
        compiled = torch.compile(attend)(query, key, value, plan)
        bench.emit(f"compiled: {what}", error=_difference(compiled, expected[0]))


def _draw(size: Heads, heads: int, draw: torch.Generator) -> Tensor:
    shape = (size.rows, size.tokens, heads, size.width)
    return torch.randn(shape, generator=draw, device=draw.device, dtype=torch.bfloat16).requires_grad_()


def _results(inputs: list[Tensor], plan: Plan, weights: Tensor) -> list[Tensor]:
    """The output, and the gradients of query, key and value of a weighted sum over it."""
    query, key, value = inputs
    out = attend(query, key, value, plan)  # (B, T, heads, D)
    return [out, *torch.autograd.grad((out.float() * weights).sum(), inputs)]


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().float() - expected).norm() / expected.detach().norm())
