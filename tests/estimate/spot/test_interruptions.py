from __future__ import annotations

import json
import statistics
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.estimate.spot.interruptions import Generated, Recorded, parse_recording

TEXT = json.dumps({"metadata": {"gap_seconds": 30}, "data": [1, 1, 0, 1, 0, 0, 1, 1, 1]})


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
def test_the_mean_life_is_the_given_one(shape: float) -> None:
    machines = list(islice(Generated(3600, shape, wait_s=300).machines(1), 20_000))
    assert statistics.fmean(machine.up_s for machine in machines) == pytest.approx(3600, rel=0.03)
    assert statistics.fmean(machine.wait_s for machine in machines) == pytest.approx(300, rel=0.03)


def test_a_seed_gives_the_same_machines() -> None:
    def take(seed: int) -> list[object]:
        return list(islice(Generated(100, 0.7, 10).machines(seed), 50))

    assert take(3) == take(3) != take(4)


def test_a_recording_is_read() -> None:
    recorded = parse_recording(TEXT, "trace.json")
    assert recorded == Recorded(30, ((True, 2), (False, 1), (True, 1), (False, 2), (True, 3)))
    assert recorded.between_s == pytest.approx(30 * (2 + 1 + 3) / 3)


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 1), min_size=2, max_size=60).filter(lambda data: 0 < sum(data) < len(data)), st.integers()
)
def test_a_replay_has_the_seconds_of_the_recording(data: list[int], seed: int) -> None:
    """From the first whole life on, a replay repeats itself with the same time up and the same time down."""
    recorded = parse_recording(json.dumps({"metadata": {"gap_seconds": 10}, "data": data}), "")
    rounds = sum(up for up, _ in recorded.runs)
    machines = list(islice(recorded.machines(seed), 1 + 2 * rounds))[1:]
    assert sum(machine.up_s for machine in machines) == 2 * 10 * sum(data)
    assert sum(machine.wait_s for machine in machines) <= 2 * 10 * (len(data) - sum(data))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 0]",
        '{"data": [1, 0]}',
        '{"metadata": {"gap_seconds": 0}, "data": [1, 0]}',
        '{"metadata": {"gap_seconds": true}, "data": [1, 0]}',
        '{"metadata": {"gap_seconds": 1e99}, "data": [1, 0]}',
        '{"metadata": {"gap_seconds": 5}, "data": [1]}',
        '{"metadata": {"gap_seconds": 5}, "data": [1, 2]}',
        '{"metadata": {"gap_seconds": 5}, "data": [1, [0]]}',
        '{"metadata": {"gap_seconds": 5}, "data": [1, 1]}',
        '{"metadata": {"gap_seconds": 5}, "data": [0, 0]}',
        "[" * 100_000,
    ],
)
def test_no_recording(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_recording(text, "trace.json")
    assert refused.value.where == "trace.json"
    assert refused.value.fix
