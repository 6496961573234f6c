"""Masked autoencoder: the encoder sees some patches, and a small decoder predicts the others.

Shapes: B clips, N patches, K seen ones, H = N - K hidden ones, P values in a patch, C decoder width.
Source: arXiv 2111.06377, s. 3; for spectrograms Audio-MAE, arXiv 2207.06405.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from prime_train.spec.audio import Audio
from prime_train.spec.clip_size import count_seen
from prime_train.trainer.audio.learning.patch_encoder import (
    PatchEncoder,
    ScaledBlock,
    cut_patches,
    rotate_grid,
    take_patches,
)


class MaskedPatches(nn.Module):
    """The decoder and the loss."""

    def __init__(self, audio: Audio) -> None:
        super().__init__()
        self.audio = audio
        sizes, encoder = audio.masked_autoencoder, audio.encoder
        self.embedding = nn.Linear(encoder.width, sizes.width)
        self.hidden = nn.Parameter(torch.empty(sizes.width))
        self.pitch = nn.Parameter(torch.empty(audio.grid[1], sizes.width))
        self.decoder_blocks = nn.ModuleList(
            ScaledBlock(sizes.width, sizes.heads, sizes.mlp_size, encoder.norm_eps) for _ in range(sizes.layers)
        )
        self.norm = nn.RMSNorm(sizes.width, encoder.norm_eps)
        self.head = nn.Linear(sizes.width, encoder.patch**2)

    def forward(self, encoder: PatchEncoder, log_mels: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """(loss summed over clips, 0-d; embeddings from what was seen, (B, encoder width)).

        `order` (B, N): a permutation; the first K are seen.
        """
        patches = take_patches(cut_patches(log_mels, self.audio.encoder.patch), order)  # (B, N, P)
        seen = count_seen(self.audio)
        encoded = encoder.encode(patches[:, :seen], order[:, :seen])  # (B, R + K, encoder width)
        predicted = self.predict(encoded[:, self.audio.encoder.registers :], order)  # (B, H, P)
        target = patches[:, seen:].float()  # (B, H, P)
        if self.audio.masked_autoencoder.normalise:
            target = normalise_patches(target)
        losses = (predicted.float() - target).square().mean((1, 2))  # (B,)
        return losses.sum(), encoder.pool(encoded)

    def predict(self, encoded: Tensor, order: Tensor) -> Tensor:
        """The hidden patches (B, H, P), from the seen ones (B, K, encoder width)."""
        sizes, seen = self.audio.masked_autoencoder, encoded.shape[1]
        hidden = self.hidden.expand(len(order), order.shape[1] - seen, -1)  # (B, H, C)
        # No token is put back in order, because its rotation has its place.
        embedded = self.embedding(encoded)  # (B, K, C)
        x = torch.cat((embedded, hidden.to(embedded)), 1) + self.pitch[order % len(self.pitch)]  # (B, N, C)
        head_dim = sizes.width // sizes.heads
        cos, sin = rotate_grid(order, len(self.pitch), head_dim, self.audio.encoder.rope_theta)
        for block in self.decoder_blocks:
            x = block(x, cos, sin)
        return cast(Tensor, self.head(self.norm(x[:, seen:])))


def normalise_patches(patches: Tensor) -> Tensor:
    """Each patch (..., P) with mean 0 and deviation 1; one that is constant becomes 0."""
    variance, mean = torch.var_mean(patches, -1, correction=0, keepdim=True)
    return (patches - mean) * (variance + 1e-6).rsqrt()
