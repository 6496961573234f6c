"""SIGReg is the test of Epps and Pulley along each direction; views are of the clip that they belong to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import torch
from numpy.typing import NDArray

from prime_train.trainer.audio.learning.audio_model import audio_loss
from prime_train.trainer.audio.learning.lejepa import AgreeingViews, measure_gaussian
from prime_train.trainer.audio.learning.patch_encoder import cut_patches, take_patches
from tests.unit.trainer.audio.learning import small
from tests.unit.trainer.tiny import CPU

Doubles = NDArray[np.float64]


def naive(projected: Doubles, directions: Doubles) -> float:
    """Algorithm 1 of arXiv 2511.08544 in plain loops, for one view (B, D)."""
    points = np.linspace(-5, 5, 17)
    found = []
    for direction in directions.T:
        along = projected @ (direction / math.sqrt((direction**2).sum()))
        distances = []
        for point in points:
            empirical = sum(np.exp(1j * point * value) for value in along) / len(along)
            distances.append(abs(empirical - math.exp(-(point**2) / 2)) ** 2 * math.exp(-(point**2) / 2))
        found.append(len(along) * float(scipy.integrate.trapezoid(distances, points)))
    return float(np.mean(found))


@pytest.mark.parametrize(("clips", "width", "slices"), [(1, 1, 1), (7, 3, 5), (40, 16, 12)])
def test_sigreg_is_the_naive_one(clips: int, width: int, slices: int) -> None:
    draw = np.random.default_rng(clips)
    views = 2 * draw.standard_normal((3, clips, width)) + 0.5  # (V, B, D)
    directions = draw.standard_normal((width, slices))
    found = measure_gaussian(torch.from_numpy(views).float(), torch.from_numpy(directions).float()).item()
    assert found == pytest.approx(np.mean([naive(view, directions) for view in views]), rel=1e-4)


def test_sigreg_is_near_the_integral() -> None:
    along = np.random.default_rng(0).standard_normal(20) * 1.5

    def distance(point: float) -> float:
        return float(
            abs(np.exp(1j * point * along).mean() - math.exp(-(point**2) / 2)) ** 2 * math.exp(-(point**2) / 2)
        )

    expected = 20 * scipy.integrate.quad(distance, -5, 5)[0]
    found = measure_gaussian(torch.from_numpy(along).float().view(1, 20, 1), torch.ones(1, 1)).item()
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_gaussian_is_nearest() -> None:
    draw = torch.Generator().manual_seed(0)
    normal = torch.randn(1, 2000, 4, generator=draw)
    directions = torch.randn(4, 64, generator=draw)
    least = measure_gaussian(normal, directions)
    # Collapsed to a point, to a line, too wide, and with the right deviation and another shape.
    line = normal[..., :1].expand_as(normal)
    for other in (torch.zeros_like(normal), line, 2 * normal, normal.sign()):
        assert measure_gaussian(other, directions) > 5 * least


def test_order_of_clips_changes_nothing() -> None:
    draw = torch.Generator().manual_seed(1)
    projected, directions = torch.randn(2, 9, 4, generator=draw), torch.randn(4, 8, generator=draw)
    shuffled = projected[:, torch.randperm(9, generator=draw)]
    torch.testing.assert_close(measure_gaussian(shuffled, directions), measure_gaussian(projected, directions))


def test_gradient_of_a_collapse_is_finite() -> None:
    projected = torch.zeros(2, 6, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(measure_gaussian(projected, torch.randn(4, 8)), [projected])
    assert gradient.isfinite().all()


def test_equal_views_agree() -> None:
    audio = small.config("lejepa")
    model = small.model(audio)
    batch = small.micro_batch(audio, 4)
    places, gains, directions = batch.drawn
    same = (places[:, :1].expand_as(places).contiguous(), torch.zeros_like(gains), directions)
    with torch.no_grad():
        loss = model(batch.log_mels, batch.labels, same)
        own = places[:, 0]  # (B, K)
        begins = (own // audio.grid[1]).amin(-1, keepdim=True) * audio.grid[1]
        seen = take_patches(cut_patches(batch.log_mels, audio.encoder.patch), own)
        embedding = model.encoder.pool(model.encoder.encode(seen, own - begins))
        projector = model.objective
        assert isinstance(projector, AgreeingViews)
        projected = projector.project(embedding).unsqueeze(0)
        expected = 4 * audio.lejepa.weight * measure_gaussian(projected, directions)
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
        assert audio_loss(model, batch, CPU) > loss


def test_embeddings_that_are_alike_are_spread_out() -> None:
    projector = small.model(small.config("lejepa")).objective
    assert isinstance(projector, AgreeingViews)
    draw = torch.Generator().manual_seed(2)
    embeddings = torch.randn(1, 32, generator=draw) + 0.01 * torch.randn(40, 32, generator=draw)
    with torch.no_grad():
        projected = projector.project(embeddings)
    assert projected.std(0).min() > 0.1
