"""The batch and the rate of a step follow the replicas: the same on all of them, and after a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train import spec
from prime_train.trainer.replicas.division import divide
from prime_train.trainer.replicas.scaling import RateRamp, count_sequences, find_rate_ratio, ramp_from

With = Literal["constant", "same_rate", "linear", "sqrt"]
WITH: tuple[With, ...] = ("constant", "same_rate", "linear", "sqrt")
quorums = st.lists(st.integers(1, 4), min_size=1, max_size=60)


def scaled_run(replicas: int = 4, follows: With = "linear", per_replica: int = 3, ramp_steps: int = 10) -> spec.RunSpec:
    return spec.RunSpec(
        run=spec.Run(name="scaled", max_steps=100),
        data=spec.Data(sources=()),
        parallel=spec.Parallel(processes=replicas, replicas=replicas),
        batch=spec.Batch(
            micro_batch=2,
            global_batch=per_replica * replicas,
            with_replicas=follows,
            rate_ramp_steps=ramp_steps,
        ),
    )


@given(sizes=quorums, per_replica=st.integers(1, 9), follows=st.sampled_from(WITH))
def test_each_row_is_used_once_and_each_replica_keeps_its_part(
    sizes: list[int], per_replica: int, follows: With
) -> None:
    run = scaled_run(follows=follows, per_replica=per_replica)
    used: list[int] = []
    for step, present in enumerate(sizes, start=1):
        sequences, before = count_sequences(run, step, present), len(used)
        parts = [divide(sequences, present, rank) for rank in range(present)]
        used += [before + row for part in parts for row in part]
        if follows == "constant":
            assert sequences == 4 * per_replica
        else:
            assert {len(part) for part in parts} == {per_replica}
    assert used == list(range(len(used)))


def test_a_batch_that_grows_follows_the_replicas_too() -> None:
    run = scaled_run(follows="same_rate", per_replica=4)
    run = replace(run, batch=replace(run.batch, start_batch=4, ramp_steps=8))
    assert [count_sequences(run, step, 4) for step in (1, 3, 8, 9)] == [4, 8, 16, 16]
    assert [count_sequences(run, step, 1) for step in (1, 3, 8, 9)] == [1, 2, 4, 4]


@pytest.mark.parametrize(("follows", "expected"), [*zip(WITH, (1.0, 1.0, 0.25, 0.5), strict=True)])
def test_the_rate_belongs_to_the_part_of_the_replicas(follows: With, expected: float) -> None:
    assert find_rate_ratio(scaled_run(follows=follows), 1) == expected
    assert find_rate_ratio(scaled_run(follows=follows), 4) == 1.0


def walk(run: spec.RunSpec, sizes: list[int], resumed_after: int = -1) -> list[float]:
    """The ratio of each step. The ramp goes through JSON after one of them, as in a resume or a healing."""
    ramp, ratios = RateRamp(), []
    for step, present in enumerate(sizes, start=1):
        ramp = ramp.follow(run, step, present)
        ratios.append(ramp.ratio(step))
        if step == resumed_after:
            ramp = ramp_from(json.loads(json.dumps(ramp.position())))
    return ratios


def test_the_rate_goes_on_a_line_to_that_of_its_replicas() -> None:
    run = scaled_run(replicas=2, ramp_steps=4)
    ratios = walk(run, [2, 2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
    assert ratios == [1, 1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.625, 0.75, 0.875, 1, 1]
    # One that comes back on the way: from where the rate is.
    assert walk(run, [2, 1, 1, 2, 2, 2, 2]) == [1, 0.875, 0.75, 0.8125, 0.875, 0.9375, 1]
    assert walk(scaled_run(replicas=2, ramp_steps=0), [2, 1, 2]) == [1, 0.5, 1]


@given(sizes=quorums, ramp_steps=st.integers(0, 20), follows=st.sampled_from(WITH), resumed_after=st.integers(1, 60))
def test_the_rate_is_between_those_of_the_replicas_and_the_same_after_a_resume(
    sizes: list[int], ramp_steps: int, follows: With, resumed_after: int
) -> None:
    run = scaled_run(follows=follows, ramp_steps=ramp_steps)
    ratios = walk(run, sizes)
    assert walk(run, sizes, resumed_after) == ratios
    least = find_rate_ratio(run, 1)
    assert all(least <= ratio <= 1.0 for ratio in ratios)
    jumps = [abs(after - before) for before, after in zip([1.0, *ratios], ratios, strict=False)]
    assert all(jump <= (1.0 - least) / max(1, ramp_steps) + 1e-12 for jump in jumps)
    for step in range(ramp_steps, len(sizes)):  # where the replicas were the same for long enough
        if len(set(sizes[step - ramp_steps : step + 1])) == 1:
            assert ratios[step] == find_rate_ratio(run, sizes[step])
