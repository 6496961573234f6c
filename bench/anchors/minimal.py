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
    x = F.embedding(tokens, weights["embedding"])  # (B, T, C)
    for layer in range(sizes.layers):
        x = block(x, of_layer(weights, layer), sizes, cos, sin)
    return head(x, weights["norm"], weights["embedding"])


def of_layer(weights: dict[str, Tensor], layer: int) -> list[Tensor]:
    """The weights of a block, as it takes them."""
    return [weights[f"{layer}.{name}"] for name in ("norm1", "qkv", "out", "norm2", "gate", "up", "down")]


def block(x: Tensor, weights: list[Tensor], sizes: Sizes, cos: Tensor, sin: Tensor) -> Tensor:
    """One layer, (B, T, C) to (B, T, C)."""
    norm1, qkv_weight, out, norm2, gate, up, down = weights
    width = (sizes.hidden_size,)
    h = F.rms_norm(x, width, norm1, 1e-5)
    qkv = F.linear(h, qkv_weight).view(*x.shape[:2], 3, sizes.heads, sizes.head_dim)
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # (B, heads, T, D)
    h = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
    x = x + F.linear(h.transpose(1, 2).flatten(2), out)
    h = F.rms_norm(x, width, norm2, 1e-5)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def head(x: Tensor, norm: Tensor, embedding: Tensor) -> Tensor:
    """Logits (B, T, V) of the last layer's output (B, T, C)."""
    return F.linear(F.rms_norm(x, norm.shape, norm, 1e-5), embedding)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
