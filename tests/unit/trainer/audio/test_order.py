"""Each epoch has every row once, in an order of seed and epoch alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.trainer.audio.order import ClipOrder

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def blocks_of(sizes: list[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(sizes).tolist())


@given(SIZES, st.booleans(), st.integers(0, 9), st.integers(0, 3))
def test_an_epoch_is_a_permutation(sizes: list[int], in_blocks: bool, seed: int, epoch: int) -> None:
    rows = sum(sizes)
    order = ClipOrder(rows, seed, blocks_of(sizes) if in_blocks else ())
    found = order.find_rows(np.arange(epoch * rows, (epoch + 1) * rows))
    assert sorted(found.tolist()) == list(range(rows))


@settings(max_examples=15)
@given(SIZES, st.integers(0, 9))
def test_places_are_independent_of_each_other(sizes: list[int], seed: int) -> None:
    order = ClipOrder(sum(sizes), seed, blocks_of(sizes))
    together = order.find_rows(np.arange(2 * order.rows))
    alone = [int(order.find_rows(np.array([place]))[0]) for place in range(2 * order.rows)]
    assert together.tolist() == alone


@given(SIZES, st.integers(0, 9))
def test_blocks_are_read_one_after_the_other(sizes: list[int], seed: int) -> None:
    blocks = blocks_of(sizes)
    found = ClipOrder(blocks[-1], seed, blocks).find_rows(np.arange(blocks[-1]))
    of_block = np.searchsorted(blocks, found, side="right")
    assert np.count_nonzero(np.diff(of_block)) == len(sizes) - 1


def test_epochs_and_seeds_differ() -> None:
    order = ClipOrder(1000, 7)
    first, second = order.find_rows(np.arange(1000)), order.find_rows(np.arange(1000, 2000))
    assert (first != second).mean() > 0.9
    assert (first != ClipOrder(1000, 8).find_rows(np.arange(1000))).mean() > 0.9


def test_crops_are_spread_over_the_clip_and_differ_by_epoch() -> None:
    order = ClipOrder(500, 3)
    crops = np.array([order.crop_at(row, row) for row in range(500)])
    again = np.array([order.crop_at(500 + row, row) for row in range(500)])
    assert ((crops >= 0) & (crops < 1)).all()
    assert abs(crops.mean() - 0.5) < 0.05
    assert (crops != again).all()
