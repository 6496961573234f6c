"""Growth of memory from save to save: where it begins to count, and how long the memory lasts."""

from __future__ import annotations

from math import inf

import pytest

from prime_train.supervise.watches.host.judge import (
    LEAST_BYTES,
    LEAST_POINTS,
    LEAST_RATIO,
    NOISE_FACTOR,
    WARM_SAVES,
    Growth,
    HeldPoint,
    measure_growth,
)

MIB = 2**20
RISE = LEAST_BYTES // (LEAST_POINTS - 1)  # per save: the least that counts over the least number of saves


def points(*held: int, every: int = 10) -> list[HeldPoint]:
    """A point per save; the first saves hold other amounts, as warming up does."""
    warm = [999 * MIB, 1][:WARM_SAVES]
    return [HeldPoint(number * every, value) for number, value in enumerate([*warm, *held], 1)]


def line(count: int = LEAST_POINTS, rise: int = RISE, base: int = MIB, wave: int = 0) -> list[int]:
    return [base + number * rise + (wave if number % 2 else -wave) for number in range(count)]


def test_growth_counts_from_the_least_number_of_saves_after_the_warm_ones() -> None:
    assert measure_growth(points(*line(LEAST_POINTS - 1, 100 * MIB)), 0, inf) is None
    assert measure_growth(points(*line(LEAST_POINTS, 100 * MIB)), 0, inf) is not None


@pytest.mark.parametrize(
    ("held", "counts"),
    [
        (line(), True),
        (line(rise=RISE - 1), False),
        (line(rise=0), False),
        (line(rise=-100 * MIB, base=10**9), False),
        (line(rise=25 * MIB, base=1940 * MIB), True),  # 100 MiB is more than 5 % of the mean of 1,990 MiB
        (line(rise=25 * MIB, base=1960 * MIB), False),
        (line(9, rise=100 * MIB, base=10 * MIB, wave=100 * MIB), True),
        (line(9, rise=100 * MIB, base=10 * MIB, wave=300 * MIB), False),
    ],
)
def test_growth_counts_beyond_noise_share_and_least_bytes(held: list[int], counts: bool) -> None:
    assert (LEAST_RATIO, NOISE_FACTOR, LEAST_BYTES) == (0.05, 4.0, 64 * MIB)
    assert (measure_growth(points(*held), 10**9, inf) is not None) == counts


@pytest.mark.parametrize(("every", "to_come"), [(10, 70.0), (1, 700.0), (0, 700.0), (20, 35.0)])
def test_the_line_gives_bytes_per_save_and_the_saves_there_is_room_for(every: int, to_come: float) -> None:
    found = measure_growth(points(*line(), every=every), 5 * RISE, 700)
    assert found == Growth(RISE, 5.0, to_come)


def test_memory_that_lasts_to_the_last_save_is_not_too_little() -> None:
    assert not Growth(1.0, 10.0, 10.0).too_much
    assert not Growth(1.0, 10.5, 10.0).too_much
    assert Growth(1.0, 9.5, 10.0).too_much
