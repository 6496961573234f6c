from __future__ import annotations

import statistics
from itertools import islice

import pytest

from tests.unit.estimate.spot.machines import Generated


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
def test_the_mean_life_is_the_given_one(shape: float) -> None:
    machines = list(islice(Generated(3600, shape, wait_s=300).machines(1), 20_000))
    assert statistics.fmean(machine.up_s for machine in machines) == pytest.approx(3600, rel=0.03)
    assert statistics.fmean(machine.wait_s for machine in machines) == pytest.approx(300, rel=0.03)


def test_a_seed_gives_the_same_machines() -> None:
    def take(seed: int) -> list[object]:
        return list(islice(Generated(100, 0.7, 10).machines(seed), 50))

    assert take(3) == take(3) != take(4)
