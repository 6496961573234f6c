"""LeJEPA: views from one clip agree, and embeddings in a micro-batch are an isotropic Gaussian (SIGReg).

A view is a window in time with some patches left out and another gain.
Shapes: B clips, V views, K patches in a view, D projection width, S directions, T points to integrate.
Source: arXiv 2511.08544: algorithm 1 (SIGReg: the Epps-Pulley test along random directions) and s. 5 (views).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prime_train.spec.audio import Audio
from prime_train.trainer.audio.learning.patch_encoder import PatchEncoder, cut_patches, take_patches

POINTS, FARTHEST = 17, 5.0  # points and bounds for the integral


class AgreeingViews(nn.Module):
    """LeJEPA's projector and loss."""

    def __init__(self, audio: Audio) -> None:
        super().__init__()
        self.audio = audio
        sizes = audio.lejepa
        self.inner = nn.Linear(audio.encoder.width, sizes.projector_width)
        # Over clips, as in the source. With a norm over each embedding alone the projections begin far from a Gaussian:
        # after 170 steps on chirps the encoder had 3 of 64 dimensions, and 7 with this one. No running mean, because
        # nothing reads the projector after training, and ranks would have to share it.
        self.norm = nn.BatchNorm1d(sizes.projector_width, track_running_stats=False)
        self.outer = nn.Linear(sizes.projector_width, sizes.projection)

    def forward(
        self, encoder: PatchEncoder, log_mels: Tensor, places: Tensor, gains: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(loss times clips, 0-d; embeddings averaged over views, (B, C)).

        `places` (B, V, K): the patches in each view; `gains` (B, V); `directions` (D, S).
        """
        patches = cut_patches(log_mels, self.audio.encoder.patch)  # (B, N, P)
        clips, views, kept = places.shape
        seen = take_patches(patches, places.flatten(1)).view(clips * views, kept, -1)  # (B x V, K, P)
        seen = seen + gains.view(-1, 1, 1)  # (B x V, K, P); a gain is a sum in log-mels
        embedding = encoder.pool(encoder.encode(seen, self._begin_at_zero(places).flatten(0, 1)))  # (B x V, C)
        projected = self.project(embedding).float().view(clips, views, -1).transpose(0, 1)  # (V, B, D)
        weight = self.audio.lejepa.weight
        agreement = (projected - projected.mean(0)).square().mean()  # ()
        loss = weight * measure_gaussian(projected, directions) + (1 - weight) * agreement  # ()
        return loss * clips, embedding.view(clips, views, -1).mean(1)

    def project(self, embeddings: Tensor) -> Tensor:
        """(N, D) for embeddings (N, C), which it compares."""
        projected: Tensor = self.outer(nn.functional.gelu(self.norm(self.inner(embeddings))))
        return projected

    def _begin_at_zero(self, places: Tensor) -> Tensor:
        """Places (B, V, K) as in a clip that begins with the view.

        Views that know their time in the clip agree on when its sounds are, which no other clip shares, and learn
        little else.
        """
        pitches = self.audio.grid[1]
        return places - (places // pitches).amin(-1, keepdim=True) * pitches


def measure_gaussian(projected: Tensor, directions: Tensor) -> Tensor:
    """SIGReg: how far embeddings (V, B, D) are from a standard normal in each direction (D, S); the mean, 0-d fp32.

    For each view and direction B times the integral over |empirical - normal characteristic function|^2, weighted by
    the normal one, by the trapezoidal rule.
    """
    points = torch.linspace(0, FARTHEST, POINTS // 2 + 1, device=projected.device)  # (T,), the other half is equal
    normal = (-points.square() / 2).exp()  # (T,)
    weights = 2 * normal * (points[1] - points[0])  # (T,), for both halves
    # The ends count half, which changes nothing: at 0 both functions are 1, and at 5 the weight is 4e-6.
    # In fp32 also under autocast: angles in bf16 would be off by whole hundredths.
    with torch.autocast(projected.device.type, enabled=False):
        along = projected.float() @ (directions / directions.norm(dim=0))  # (V, B, S)
        angles = along.unsqueeze(-1) * points  # (V, B, S, T)
        distance = (angles.cos().mean(1) - normal).square() + angles.sin().mean(1).square()  # (V, S, T)
        statistic: Tensor = (distance @ weights).mean() * projected.shape[1]  # ()
        return statistic
