"""Each epoch has every row once, in an order of seed and epoch alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.trainer.audio.order import ClipOrder, count_quotas

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


SHARES = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4)


@given(st.integers(1, 500), SHARES)
def test_quotas_are_the_shares_to_within_one(rows: int, shares: list[float]) -> None:
    quotas = count_quotas(rows, shares)
    assert sum(quotas) == rows
    for share, quota in zip(shares, quotas, strict=True):
        assert abs(quota - rows * share / sum(shares)) < 1 + 1e-6


@settings(max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.data(), st.integers(0, 9))
def test_each_source_is_read_row_by_row_in_its_share(sizes: list[int], data: st.DataObject, seed: int) -> None:
    shares = data.draw(st.lists(st.floats(0.05, 1.0), min_size=len(sizes), max_size=len(sizes)))
    blocks, rows = blocks_of(sizes), sum(sizes)
    order = ClipOrder(rows, seed, blocks, count_quotas(rows, shares))
    epochs = 4
    found = order.find_rows(np.arange(epochs * rows)).reshape(epochs, rows)
    turns = [order.epoch_of(place) for place in range(epochs * rows)]
    for source, quota in enumerate(order.quotas):
        own = (found >= blocks[source]) & (found < blocks[source + 1])
        assert (own.sum(1) == quota).all()  # of each epoch
        # Each turn has every row once, but for the last one, which the next epochs go on with.
        of_turn = sorted(zip(np.array(turns)[own.ravel()].tolist(), found[own].tolist(), strict=True))
        assert len(set(of_turn)) == len(of_turn)
        whole = epochs * quota // sizes[source]
        expected = [(turn, row) for turn in range(whole) for row in range(blocks[source], blocks[source + 1])]
        assert of_turn[: len(expected)] == expected


@settings(max_examples=10)
@given(st.integers(0, 9))
def test_a_mixture_is_a_function_of_the_place_alone(seed: int) -> None:
    order = ClipOrder(30, seed, (0, 10, 30), count_quotas(30, (0.8, 0.2)))
    together = order.find_rows(np.arange(90))
    alone = [int(order.find_rows(np.array([place]))[0]) for place in range(90)]
    assert together.tolist() == alone
    assert all(0 <= order.other_row(place, 1, 3) < 10 <= order.other_row(place, 1, 12) < 30 for place in range(90))
    # The small source begins again within an epoch, with other crops.
    twice = [place for place in range(30) if together[place] == together[0]]
    assert len({order.crop_at(place, int(together[0])) for place in twice}) == len(twice)
