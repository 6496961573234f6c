"""The encoder sees each patch at its place, in any order, and on a part of them as on all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from prime_train.spec.audio import AudioEncoder
from prime_train.trainer.audio.learning.patch_encoder import PatchEncoder, cut_patches, rotate_grid, take_patches
from prime_train.trainer.model.rotary import rotate
from tests.unit.trainer.audio.learning import small

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def encoder() -> PatchEncoder:
    return small.model(small.AUDIO).encoder


LOG_MELS = torch.from_numpy(small.clips(3).log_mels)


def test_patches_are_squares_of_the_spectrogram() -> None:
    patches = cut_patches(LOG_MELS, 16)  # (B, N, P)
    for at in range(24):
        time, pitch = divmod(at, 4)
        square = LOG_MELS[:, 16 * time : 16 * time + 16, 16 * pitch : 16 * pitch + 16]
        assert torch.equal(patches[:, at], square.flatten(1))


@torch.no_grad()
def test_all_patches_are_as_none_named(encoder: PatchEncoder) -> None:
    whole = encoder(LOG_MELS)
    assert whole.shape == (3, 2 + 24, 32)
    assert torch.equal(encoder(LOG_MELS, torch.arange(24).expand(3, -1)), whole)


@torch.no_grad()
def test_order_of_patches_moves_the_results_alone(encoder: PatchEncoder) -> None:
    order = torch.stack([torch.from_numpy(np.random.default_rng(row).permutation(24)) for row in range(3)])  # (B, N)
    expected = encoder(LOG_MELS)
    found = encoder(LOG_MELS, order)
    torch.testing.assert_close(found[:, :2], expected[:, :2], **CLOSE)
    torch.testing.assert_close(found[:, 2:], take_patches(expected[:, 2:], order), **CLOSE)
    torch.testing.assert_close(encoder.pool(found), encoder.pool(expected), **CLOSE)


@torch.no_grad()
def test_what_is_left_out_changes_nothing(encoder: PatchEncoder) -> None:
    kept = torch.arange(0, 24, 3).expand(3, -1)  # (B, K)
    expected = encoder(LOG_MELS, kept)
    other = LOG_MELS.clone()
    other[:, 16:32, 0:16] += 1  # patch 4
    assert torch.equal(encoder(other, kept), expected)
    assert not torch.allclose(encoder(other), encoder(LOG_MELS))


@torch.no_grad()
def test_place_of_a_patch_counts(encoder: PatchEncoder) -> None:
    patches = cut_patches(LOG_MELS, 16)  # (B, N, P)
    places = torch.arange(24).expand(3, -1)
    for moved in (places.roll(4, 1), places.view(3, 6, 4).flip(2).flatten(1)):  # in time, in pitch
        assert not torch.allclose(encoder.pool(encoder.encode(patches, moved)), encoder.pool(encoder(LOG_MELS)))


def test_products_depend_on_distances_alone() -> None:
    # Rotary positions: the product of two heads is that of their distance in time and in pitch.
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def product(one: int, other: int) -> float:
        turned = [rotate(x, *rotate_grid(torch.tensor([[at]]), 8, 16, 100.0)) for x, at in ((query, one), (key, other))]
        return float((turned[0] * turned[1]).sum())

    at = product(0, 8 * 3 + 2)
    assert product(8 * 5 + 4, 8 * 8 + 6) == pytest.approx(at, abs=1e-5)
    assert product(8 * 5 + 4, 8 * 9 + 6) != pytest.approx(at, abs=1e-3)
    assert product(8 * 5 + 4, 8 * 8 + 7) != pytest.approx(at, abs=1e-3)


def test_layer_scale_begins_small() -> None:
    barely = replace(small.AUDIO, encoder=replace(small.AUDIO.encoder, layer_scale=1e-9))
    encoder = small.model(barely).encoder
    with torch.no_grad():
        embedded = encoder.embedding(cut_patches(LOG_MELS, 16)) + encoder.pitch[torch.arange(24) % 4]
        torch.testing.assert_close(encoder(LOG_MELS)[:, 2:], encoder.norm(embedded), **CLOSE)


def test_encoder_needs_no_registers() -> None:
    audio = replace(small.AUDIO, encoder=AudioEncoder(layers=1, width=32, heads=2, registers=0))
    assert small.model(audio).encoder(LOG_MELS).shape == (3, 24, 32)
