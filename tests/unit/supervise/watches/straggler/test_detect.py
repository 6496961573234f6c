"""The detector of slow ranks on simulated fleets: 2 % noise in each step, 5 % that all ranks share, single pauses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from prime_train.core.rank_times import RankStep
from prime_train.supervise.watches.straggler.detect import (
    EVERY_STEPS,
    NO_RANKS,
    WINDOW_STEPS,
    RankHistory,
    Strikes,
    follow,
    judge_round,
)

SEEDS = range(20)
STEPS = 2000
SLOW_FROM = 1000


def simulate(ranks: int, seed: int, steps: int, slow: float = 0.0) -> np.ndarray:
    """Medians of the seconds of each rank over the window, (rounds, ranks). Rank 0 gets slower at SLOW_FROM."""
    draw = np.random.default_rng(seed)
    shared = 1 + 0.05 * draw.standard_normal((steps, 1))
    own = 1 + 0.02 * draw.standard_normal((steps, ranks)) + 0.01 * draw.standard_normal(ranks)
    pauses = np.where(draw.random((steps, ranks)) < 0.01, draw.uniform(1.5, 4.0, (steps, ranks)), 1.0)
    seconds = shared * own * pauses
    seconds[SLOW_FROM:, 0] *= 1 + slow
    return np.median(sliding_window_view(seconds, WINDOW_STEPS, axis=0)[::EVERY_STEPS], axis=-1)


def find_named(medians: np.ndarray, first: int = 0) -> dict[int, int]:
    """The step at which each rank was first found slow. Rounds before `first` are not judged."""
    strikes: dict[int, Strikes] = {}
    named: dict[int, int] = {}
    for number, row in enumerate(medians[first:], first):
        strikes = judge_round(strikes, dict(enumerate(row.tolist())))
        for rank, found in strikes.items():
            if found.is_slow:
                named.setdefault(rank, WINDOW_STEPS + number * EVERY_STEPS)
    return named


@pytest.mark.parametrize("ranks", [2, 3, 4, 16, 256])
def test_no_healthy_rank_is_named(ranks: int) -> None:
    for seed in SEEDS:
        assert find_named(simulate(ranks, seed, STEPS)) == {}, seed


def find_slow(ranks: int, slow: float) -> list[int]:
    """The steps after which rank 0 was named, over the seeds that named it. No other rank may be."""
    first = 0 if ranks == 2 else (SLOW_FROM - 100) // EVERY_STEPS  # of two, the first steps are the measure
    found = [find_named(simulate(ranks, seed, SLOW_FROM + 400, slow), first) for seed in SEEDS]
    assert all(set(named) <= {0} for named in found)
    return [named[0] - SLOW_FROM for named in found if named]


@pytest.mark.parametrize("ranks", [3, 4, 16, 256])
def test_a_slow_rank_is_found(ranks: int) -> None:
    half, fifth, eighth = (find_slow(ranks, slow) for slow in (0.5, 0.2, 0.12))
    assert len(half) == len(fifth) == len(SEEDS)
    assert np.median(half) <= 25
    assert np.median(fifth) <= 30
    assert len(eighth) >= 15
    assert len(find_slow(ranks, 0.08)) <= 10  # below the least excess that counts


def test_of_two_ranks_the_slower_one_is_found_by_its_own_past() -> None:
    half = find_slow(2, 0.5)
    assert len(half) == len(SEEDS)
    assert np.median(half) <= 40
    assert find_slow(2, 0.12) == []


def row(step: int, compute_s: float, *, data_s: float = 0.0, work: float = 1.0) -> RankStep:
    return RankStep(step, 1.0, data_s, compute_s, 0.0, work)


def follow_all(times: dict[int, list[RankStep]], last: int) -> RankHistory:
    """The history after a look at every step."""
    history = NO_RANKS
    for step in range(1, last + 1):
        history = follow(history, {rank: rows[max(0, step - 64) : step] for rank, rows in times.items()})
    return history


def test_the_impact_is_what_the_others_would_save() -> None:
    times = {rank: [row(step, 0.4 if rank else 0.9) for step in range(1, 61)] for rank in range(4)}
    (slow,) = follow_all(times, 60).slow
    assert slow.rank == 0
    assert slow.impact == pytest.approx(1.0 / 0.5 - 1)
    assert slow.excess == pytest.approx(1.25)
    assert not slow.is_data


def test_a_rank_that_waits_for_its_rows_is_named_for_its_data() -> None:
    times = {rank: [row(step, 0.4, data_s=0.0 if rank else 0.5) for step in range(1, 61)] for rank in range(4)}
    (slow,) = follow_all(times, 60).slow
    assert slow.is_data


def test_more_work_is_not_slower_work() -> None:
    times = {rank: [row(step, 0.4, work=10.0) for step in range(1, 61)] for rank in range(4)}
    times[2] = [replace(one, compute_s=0.8, work=20.0) for one in times[2]]
    assert follow_all(times, 60).slow == ()
    times[2] = [replace(one, work=0.0) for one in times[2]]  # not known
    assert [one.rank for one in follow_all(times, 60).slow] == [2]


def test_a_rank_that_is_well_again_is_cleared() -> None:
    rows = {rank: [row(step, 0.4 if rank or step > 60 else 0.9) for step in range(1, 121)] for rank in range(4)}
    assert follow_all(rows, 60).slow
    assert not follow_all(rows, 120).slow


def test_a_rank_alone_or_without_steps_is_not_judged() -> None:
    assert follow(NO_RANKS, {0: [row(1, 1.0)]}) is NO_RANKS
    assert follow(NO_RANKS, {0: [row(1, 1.0)], 1: []}) is NO_RANKS


def test_ranks_that_go_back_are_judged_from_the_beginning() -> None:
    history = RankHistory({0: Strikes(3, True)}, judged_step=500)
    times = {rank: [row(step, 1.0) for step in range(1, 30)] for rank in range(3)}
    assert follow(history, times).judged_step == 29
    assert follow(history, times).slow == ()


@given(st.dictionaries(st.integers(0, 20), st.floats(0, 1e6), max_size=8), st.floats(0.5, 8.0))
def test_the_unit_of_time_does_not_matter(medians_s: dict[int, float], scale: float) -> None:
    scaled = {rank: own_s * 2.0 ** round(scale) for rank, own_s in medians_s.items()}
    found, other = judge_round({}, medians_s), judge_round({}, scaled)
    assert {rank: one.count for rank, one in found.items()} == {rank: one.count for rank, one in other.items()}
