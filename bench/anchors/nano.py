"""A loop in the manner of nanoGPT, written for this benchmark: a GPT-2 model of the same size and its usual trimmings.

LayerNorm, learned positions, GELU, one matrix for queries, keys and values, tied head; a cosine rate
per step, two decay groups, clipping. The optimizer is fused, which nanoGPT leaves off on a CPU.
"""

from __future__ import annotations

import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchors import BETAS, CLIP_NORM, PEAK_LR, WEIGHT_DECAY, Anchor, Sizes, Tokens

_SCHEDULE_STEPS = 1000


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))  # (B, heads, T, D)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class _Gpt(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.positions = nn.Embedding(sizes.ctx_tokens, sizes.hidden_size)
        self.layers = nn.ModuleList(_Layer(sizes.hidden_size, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden_size, bias=False)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))  # (B, T, C)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)  # (B, T, V)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def make(sizes: Sizes) -> Anchor:
    model = _Gpt(sizes)
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    gains = [weight for weight in model.parameters() if weight.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": gains, "weight_decay": 0.0}],
        lr=PEAK_LR,
        betas=BETAS,
        fused=True,
    )
    steps_taken = 0

    def run(batches: list[Tokens]) -> list[float]:
        nonlocal steps_taken
        seconds = []
        for batch in batches:
            began = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = PEAK_LR * 0.5 * (1 + math.cos(math.pi * min(1.0, steps_taken / _SCHEDULE_STEPS)))
            loss = model(batch.tokens, batch.labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()  # it is logged
            steps_taken += 1
            seconds.append(time.perf_counter() - began)
        return seconds

    return Anchor("nanoGPT-like loop", sum(weight.numel() for weight in model.parameters()), run)
