from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.trainer.data.order import ROUNDS, TABLE, DocumentOrder, permute


def epoch_of(count: int, seed: int, epoch: int = 0, source: int = 0, version: int | None = None) -> list[int]:
    counts = (count,) * (source + 1)
    order = DocumentOrder(seed, counts, None, 4) if version is None else DocumentOrder(seed, counts, None, 4, version)
    return [int(document) for document in order.documents(source, epoch * count, count)]


@settings(deadline=None)
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**31), epoch=st.integers(0, 1000), source=st.integers(0, 40))
def test_every_epoch_has_every_document_once(count: int, seed: int, epoch: int, source: int) -> None:
    assert sorted(epoch_of(count, seed, epoch, source)) == list(range(count))


@settings(deadline=None)
@given(count=st.integers(2, 2**60), seed=st.integers(0, 2**31), data=st.data())
def test_places_of_a_source_of_any_size_have_documents_of_their_own(count: int, seed: int, data: st.DataObject) -> None:
    """Without a table: one of 10^18 documents would take 8 exabytes."""
    places = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=50))
    keys = np.random.default_rng(seed).integers(0, 2**62, size=ROUNDS, dtype=np.uint64)
    found = permute(np.asarray(places, dtype=np.int64), count, keys).tolist()
    assert len(set(found)) == len(places)
    assert all(0 <= document < count for document in found)


@pytest.mark.parametrize("count", [5, 23, 64])
def test_each_document_is_as_likely_at_each_place(count: int) -> None:
    epochs = 3000
    found = np.asarray([epoch_of(count, 1, epoch) for epoch in range(epochs)])
    tallies = np.asarray([np.bincount(column, minlength=count) for column in found.T])
    expected, freedom = epochs / count, (count - 1) ** 2
    chi_square = float(((tallies - expected) ** 2 / expected).sum())
    assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom)


def test_neighbours_are_as_far_apart_as_by_chance() -> None:
    found = np.asarray(epoch_of(100_000, 3))
    descents, expected = int((np.diff(found) < 0).sum()), 99_999 / 2
    assert abs(descents - expected) < 5 * math.sqrt(100_001 / 12)  # source: Eulerian numbers, variance (n + 1) / 12
    assert abs(np.corrcoef(np.arange(len(found)), found)[0, 1]) < 5 / math.sqrt(len(found))
    distances = np.abs(np.diff(found))
    assert abs(distances.mean() / 100_000 - 1 / 3) < 0.005


def test_seeds_sources_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_of(50, seed, epoch, source)) for seed in (1, 2) for epoch in (0, 1) for source in (0, 1)}
    assert len(orders) == 8


def test_the_order_is_the_same_in_every_version_of_python_and_numpy() -> None:
    assert epoch_of(10, 3) == [9, 1, 5, 8, 4, 3, 2, 7, 0, 6]
    assert epoch_of(10, 3, version=TABLE) == [4, 1, 2, 8, 5, 0, 7, 9, 6, 3]  # of version 0.1
