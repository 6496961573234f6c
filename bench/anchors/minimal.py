"""A minimal hand-written loop: a Llama-style model as functions of a dict of weights, and a loop of six lines.

No modules, no schedule, no metrics. Documents in a row attend to each other (plain causal attention).
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from anchors import BETAS, CLIP_NORM, PEAK_LR, WEIGHT_DECAY, Anchor, Crops, Sizes


def make(sizes: Sizes, crops: Crops) -> Anchor:
    weights, (cos, sin) = make_weights(sizes), rotations(sizes)
    optimizer = torch.optim.AdamW(weights.values(), lr=PEAK_LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)

    def run(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            began = time.process_time()
            batch = crops.next()
            logits = forward(weights, sizes, cos, sin, batch.tokens)
            loss = F.cross_entropy(logits.view(-1, sizes.vocab_size), batch.labels.view(-1))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights.values(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - began)
        return seconds

    return Anchor("minimal hand-written loop", sum(weight.numel() for weight in weights.values()), run)


def rotations(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position, each (T, D/2)."""
    exponents = torch.arange(0, sizes.head_dim, 2) / sizes.head_dim
    angles = torch.outer(torch.arange(sizes.ctx_tokens).float(), 10000.0**-exponents)
    return angles.cos(), angles.sin()


def make_weights(sizes: Sizes) -> dict[str, Tensor]:
    width, inner = sizes.hidden_size, sizes.mlp_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (sizes.vocab_size, width), "norm": (width,)}
    for layer in range(sizes.layers):
        shapes |= {
            f"{layer}.norm1": (width,),
            f"{layer}.qkv": (3 * width, width),
            f"{layer}.out": (width, width),
            f"{layer}.norm2": (width,),
            f"{layer}.gate": (inner, width),
            f"{layer}.up": (inner, width),
            f"{layer}.down": (width, inner),
        }
    generator = torch.Generator().manual_seed(0)
    return {
        name: (
            torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        ).requires_grad_()
        for name, shape in shapes.items()
    }


def forward(weights: dict[str, Tensor], sizes: Sizes, cos: Tensor, sin: Tensor, tokens: Tensor) -> Tensor:
    """Logits (B, T, V)."""
    width = (sizes.hidden_size,)
    x = F.embedding(tokens, weights["embedding"])  # (B, T, C)
    for layer in range(sizes.layers):
        h = F.rms_norm(x, width, weights[f"{layer}.norm1"], 1e-5)
        qkv = F.linear(h, weights[f"{layer}.qkv"]).view(*tokens.shape, 3, sizes.heads, sizes.head_dim)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # (B, heads, T, D)
        h = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + F.linear(h.transpose(1, 2).flatten(2), weights[f"{layer}.out"])
        h = F.rms_norm(x, width, weights[f"{layer}.norm2"], 1e-5)
        h = F.silu(F.linear(h, weights[f"{layer}.gate"])) * F.linear(h, weights[f"{layer}.up"])
        x = x + F.linear(h, weights[f"{layer}.down"])
    return F.linear(F.rms_norm(x, width, weights["norm"], 1e-5), weights["embedding"])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
