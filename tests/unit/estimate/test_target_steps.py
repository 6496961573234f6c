from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.estimate.target_steps import steps_to_loss


def curve(floor: float, scale: float, power: float, steps: int = 200, noise: float = 0.0) -> list[dict[str, Any]]:
    rng = random.Random(7)
    return [
        {"step": step, "loss": (floor + scale / step**power) * (1 + rng.uniform(-noise, noise))}
        for step in range(1, steps + 1)
    ]


@given(st.floats(0.0, 2.0), st.floats(2.0, 8.0), st.floats(0.2, 0.6))
def test_a_curve_is_continued(floor: float, scale: float, power: float) -> None:
    wanted = 400
    loss = floor + scale / wanted**power
    found = steps_to_loss(curve(floor, scale, power), loss, "m")
    assert found.low <= found.typical <= found.high
    assert found.typical == pytest.approx(wanted, rel=0.2)


def test_noise_widens_the_interval() -> None:
    exact = steps_to_loss(curve(1.5, 5.0, 0.4), 2.0, "m")
    noisy = steps_to_loss(curve(1.5, 5.0, 0.4, noise=0.05), 2.0, "m")
    assert noisy.high - noisy.low > exact.high - exact.low
    assert noisy.low <= (5.0 / 0.5) ** (1 / 0.4) <= noisy.high


def test_a_loss_that_was_reached_already_takes_fewer_steps_than_measured() -> None:
    assert steps_to_loss(curve(1.0, 4.0, 0.5), 1.5, "m").typical == pytest.approx(64, rel=0.1)


@pytest.mark.parametrize(
    ("lines", "loss"),
    [
        (curve(2.0, 4.0, 0.5), 1.9),
        (curve(2.0, 4.0, 0.5, steps=5), 2.5),
        ([{"step": step, "loss": 3.0} for step in range(1, 50)], 2.0),
        ([{"step": step, "loss": 1.0 + step / 10} for step in range(1, 50)], 0.5),
        ([{"step_s": 1.0}] * 50, 2.0),
        ([{"step": step, "loss": math.nan} for step in range(1, 50)], 2.0),
    ],
)
def test_what_no_curve_reaches_is_refused(lines: list[dict[str, Any]], loss: float) -> None:
    with pytest.raises(UserError) as refused:
        steps_to_loss(lines, loss, "m")
    assert "--steps" in refused.value.fix
