"""A vision transformer over patches. It can run on some alone. Reads no file.

Shapes: B clips, F frames, M mels, N patches in a clip, K that are given, R registers, P values in a patch,
C width between blocks, D head width.
Sources: ViT, arXiv 2010.11929; registers, arXiv 2309.16588; LayerScale, arXiv 2103.17239; rotary positions on two
axes, arXiv 2403.13298, s. 3; query and key norms, arXiv 2302.05442, s. 2.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prime_train.spec.audio import Audio
from prime_train.trainer.model.decoder import Mlp
from prime_train.trainer.model.rotary import rotate, rotations


class FullAttention(nn.Module):
    """Attention from all tokens to all, in both directions."""

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.query_norm, self.key_norm = (nn.RMSNorm(self.head_dim, eps) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (-1, self.head_dim))  # (B, R + K, heads, D)
        key = self.key(x).unflatten(-1, (-1, self.head_dim))  # (B, R + K, heads, D)
        value = self.value(x).unflatten(-1, (-1, self.head_dim))  # (B, R + K, heads, D)
        query, key = rotate(self.query_norm(query), cos, sin), rotate(self.key_norm(key), cos, sin)
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))  # (B, R + K, C)


class ScaledBlock(nn.Module):
    """A block whose branches begin small (LayerScale)."""

    def __init__(self, width: int, heads: int, mlp_size: int, eps: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.attention, self.mlp = FullAttention(width, heads, eps), Mlp(width, mlp_size)
        self.attention_scale, self.mlp_scale = (nn.Parameter(torch.empty(width)) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention_scale * self.attention(self.attention_norm(x), cos, sin)  # (B, R + K, C)
        return cast(Tensor, x + self.mlp_scale * self.mlp(self.mlp_norm(x)))  # (B, R + K, C)


class PatchEncoder(nn.Module):
    """Spectrograms to a vector for each register and each patch. Its weights have no values until `initialise`."""

    def __init__(self, audio: Audio) -> None:
        super().__init__()
        sizes = audio.encoder
        self.audio = audio
        self.embedding = nn.Linear(sizes.patch**2, sizes.width)
        self.pitch = nn.Parameter(torch.empty(audio.grid[1], sizes.width))
        self.registers = nn.Parameter(torch.empty(sizes.registers, sizes.width))
        self.blocks = nn.ModuleList(
            ScaledBlock(sizes.width, sizes.heads, sizes.mlp_size, sizes.norm_eps) for _ in range(sizes.layers)
        )
        self.norm = nn.RMSNorm(sizes.width, sizes.norm_eps)

    def forward(self, log_mels: Tensor, kept: Tensor | None = None) -> Tensor:
        """(B, R + K, C) for spectrograms (B, F, M); `kept` (B, K): the patches to see, in any order; None = all."""
        patches = cut_patches(log_mels, self.audio.encoder.patch)  # (B, N, P)
        if kept is None:
            kept = torch.arange(patches.shape[1], device=patches.device).expand(len(patches), -1)  # (B, N)
        else:
            patches = take_patches(patches, kept)  # (B, K, P)
        return self.encode(patches, kept)

    def encode(self, patches: Tensor, places: Tensor) -> Tensor:
        """(B, R + K, C) for patches (B, K, P) at these places (B, K) in the grid."""
        sizes = self.audio.encoder
        x = self.embedding(patches) + self.pitch[places % len(self.pitch)]  # (B, K, C)
        x = torch.cat((self.registers.expand(len(x), -1, -1), x), 1)  # (B, R + K, C)
        cos, sin = rotate_grid(places, self.audio.grid[1], sizes.head_dim, sizes.rope_theta, sizes.registers)
        for block in self.blocks:
            x = block(x, cos, sin)
        return cast(Tensor, self.norm(x))

    def pool(self, encoded: Tensor) -> Tensor:
        """One vector for each clip, (B, C): the mean patch, in fp32. `encoded` (B, R + K, C)."""
        return encoded[:, self.audio.encoder.registers :].float().mean(1)


def cut_patches(log_mels: Tensor, patch: int) -> Tensor:
    """Spectrograms (B, F, M) cut into patches, (B, N, P): time after time, and in each from low to high."""
    clips, frames, mels = log_mels.shape
    cut = log_mels.view(clips, frames // patch, patch, mels // patch, patch)  # (B, F/p, p, M/p, p)
    return cut.transpose(2, 3).reshape(clips, -1, patch**2)  # (B, N, P)


def take_patches(patches: Tensor, places: Tensor) -> Tensor:
    """The patches (B, K, P) at `places` (B, K) among all, (B, N, P)."""
    return patches.gather(1, places.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))


def rotate_grid(places: Tensor, rows: int, head_dim: int, theta: float, registers: int = 0) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for places (B, K), (B, R + K, 1, D) each. Registers are not turned.

    The first half in a head turns by time, the second by pitch.
    """
    quarter = head_dim // 4
    turned = [rotations(axis, head_dim // 2, theta) for axis in (places // rows, places % rows)]  # (B, K, 1, D/2) each
    (time_cos, time_sin), (pitch_cos, pitch_sin) = turned
    cos = torch.cat((time_cos[..., :quarter], pitch_cos[..., :quarter]), -1).repeat(1, 1, 1, 2)  # (B, K, 1, D)
    low, high = (
        torch.cat((time_sin[..., half], pitch_sin[..., half]), -1)  # (B, K, 1, D/2)
        for half in (slice(0, quarter), slice(quarter, None))
    )
    sin = torch.cat((low, high), -1)  # (B, K, 1, D), the first half negated
    return F.pad(cos, (0, 0, 0, 0, registers, 0), value=1.0), F.pad(sin, (0, 0, 0, 0, registers, 0))
