"""A loop in the style of nanoGPT, written for this benchmark: modules, a cosine rate per step, two decay groups.

One matrix makes queries, keys and values; the head is tied; the loss is read after each step. The optimizer is fused,
which nanoGPT does not use on a CPU. `make` trains the same Llama-style model as all loops. `make_gpt2` trains a GPT-2
with the same number of parameters, with its biases and its approximation of GELU.
"""

from __future__ import annotations

import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchors import BETAS, CLIP_NORM, PEAK_LR, WEIGHT_DECAY, Anchor, Crops, Sizes

_SCHEDULE_STEPS = 1000


class _LlamaLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.heads = sizes.heads
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, sizes.mlp_size, bias=False)
        self.up = nn.Linear(width, sizes.mlp_size, bias=False)
        self.down = nn.Linear(sizes.mlp_size, width, bias=False)
        angles = torch.outer(
            torch.arange(sizes.ctx_tokens).float(), 10000.0 ** -(torch.arange(0, sizes.head_dim, 2) / sizes.head_dim)
        )
        self.cos, self.sin = angles.cos(), angles.sin()  # (T, D/2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = _heads(self.qkv(self.norm1(x)), self.heads)
        mixed = F.scaled_dot_product_attention(self._rotate(q), self._rotate(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out

    def _rotate(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat((left * self.cos - right * self.sin, right * self.cos + left * self.sin), -1)


class _Gpt2Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.heads = sizes.heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = _heads(self.qkv(self.norm1(x)), self.heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out


def _heads(qkv: Tensor, heads: int) -> list[Tensor]:
    """Queries, keys and values, each (B, heads, T, D)."""
    return [part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in qkv.chunk(3, -1)]


class _Model(nn.Module):
    def __init__(self, sizes: Sizes, layer: type[_LlamaLayer] | type[_Gpt2Layer]) -> None:
        super().__init__()
        gpt2 = layer is _Gpt2Layer
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.positions = nn.Embedding(sizes.ctx_tokens, sizes.hidden_size) if gpt2 else None
        self.layers = nn.ModuleList(layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden_size) if gpt2 else nn.RMSNorm(sizes.hidden_size, eps=1e-5)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens)  # (B, T, C)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)  # (B, T, V)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def make(sizes: Sizes, crops: Crops) -> Anchor:
    return _loop("nanoGPT-like loop", _Model(sizes, _LlamaLayer), crops)


def make_compiled(sizes: Sizes, crops: Crops) -> Anchor:
    model = _Model(sizes, _LlamaLayer)
    model.compile()
    return _loop("nanoGPT-like loop, compiled", model, crops)


def make_gpt2(sizes: Sizes, crops: Crops) -> Anchor:
    return _loop("nanoGPT-like loop, GPT-2 model", _Model(sizes, _Gpt2Layer), crops)


def _loop(name: str, model: _Model, crops: Crops) -> Anchor:
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    gains = [weight for weight in model.parameters() if weight.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": gains, "weight_decay": 0.0}],
        lr=PEAK_LR,
        betas=BETAS,
        fused=True,
    )
    steps_taken = 0

    def run(steps: int) -> list[float]:
        nonlocal steps_taken
        seconds = []
        for _ in range(steps):
            began = time.process_time()
            batch = crops.next()
            for group in optimizer.param_groups:
                group["lr"] = PEAK_LR * 0.5 * (1 + math.cos(math.pi * min(1.0, steps_taken / _SCHEDULE_STEPS)))
            loss = model(batch.tokens, batch.labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()  # it is logged
            steps_taken += 1
            seconds.append(time.process_time() - began)
        return seconds

    return Anchor(name, sum(weight.numel() for weight in model.parameters()), run)
