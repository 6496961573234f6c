"""The critical path covers the steps exactly, and blames a wait on what ended it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.spans import COMPONENTS, Span
from prime_train.profile.critical_path import LaneSegment, critical_path, find_window, flatten, sort_into_lanes
from tests.unit.profile.planted import rollout_steps, trainer_step, trainer_steps

TIMES = st.integers(0, 40).map(lambda tenths: tenths / 10)
LANES = st.sampled_from(["trainer-rank0", "trainer-rank1", "rollout-1", "rollout-2", "loader-0", "engine"])
SPANS = st.builds(
    lambda component, lane, start_s, seconds: Span(component, lane, start_s, start_s + seconds),
    st.sampled_from(COMPONENTS),
    LANES,
    TIMES,
    TIMES,
)


def seconds(spans: list[Span], warm_up_steps: int = 0) -> dict[str, float]:
    window = find_window(spans, warm_up_steps)
    assert window is not None
    found: dict[str, float] = defaultdict(float)
    for one in critical_path(sort_into_lanes(spans), window):
        found[one.component] += one.seconds
    return {name: round(value, 6) for name, value in found.items()}


@given(st.lists(SPANS, max_size=30))
def test_the_path_covers_the_window_without_gap_or_overlap(spans: list[Span]) -> None:
    every = [*spans, Span("step", "trainer-rank0", 0.5, 3.5, 1)]
    window = find_window(every, 0)
    assert window is not None
    path = critical_path(sort_into_lanes(every), window)
    assert path[0].start_s == window.start_s
    assert path[-1].end_s == window.end_s
    assert all(before.end_s == after.start_s for before, after in pairwise(path))
    assert sum(one.seconds for one in path) == pytest.approx(window.seconds)


@given(st.lists(SPANS, max_size=30))
def test_segments_of_a_lane_do_not_overlap_and_cover_its_spans(spans: list[Span]) -> None:
    work = [one for one in spans if one.end_s > one.start_s]
    found = flatten("x", work)
    assert all(before.end_s <= after.start_s for before, after in pairwise(found))
    moments = [half / 20 + 0.01 for half in range(170)]
    for moment in moments:
        covered = any(one.start_s <= moment < one.end_s for one in work)
        assert covered == any(one.start_s <= moment < one.end_s for one in found)


def test_a_nested_span_counts_for_itself() -> None:
    outer, inner = Span("backward", "x", 0.0, 3.0), Span("communication", "x", 1.0, 2.0)
    assert flatten("x", [outer, inner]) == [
        LaneSegment("backward", "x", 0.0, 1.0),
        LaneSegment("communication", "x", 1.0, 2.0),
        LaneSegment("backward", "x", 2.0, 3.0),
    ]


def test_a_loop_without_waits_is_its_own_path() -> None:
    assert seconds(trainer_steps([("data", 1.0), ("forward", 2.0), ("backward", 3.0)], steps=2)) == {
        "data": 2.0,
        "forward": 4.0,
        "backward": 6.0,
    }


def test_warm_up_steps_do_not_count() -> None:
    spans = [*trainer_step(0.0, 1, [("forward", 9.0)]), *trainer_step(9.0, 2, [("forward", 1.0)])]
    assert seconds(spans, warm_up_steps=1) == {"forward": 1.0}


def test_a_wait_for_rollouts_belongs_to_the_last_rollout() -> None:
    spans = [
        *trainer_step(0.0, 1, [("rollouts", 5.0), ("forward", 1.0)]),
        Span("decode", "rollout-1", 0.0, 2.0),
        Span("tool", "rollout-1", 2.0, 5.0),
        Span("decode", "rollout-2", 0.0, 4.0),
    ]
    assert seconds(spans) == {"decode": 2.0, "tool": 3.0, "forward": 1.0}


def test_training_that_is_hidden_behind_rollouts_is_not_on_the_path() -> None:
    """Two steps of 1 s of training and 3 s of rollouts that overlap: the rollouts decide."""
    spans = [
        *trainer_step(0.0, 1, [("forward", 1.0), ("rollouts", 2.0)]),
        *trainer_step(3.0, 2, [("forward", 1.0), ("rollouts", 2.0)]),
        Span("decode", "rollout-1", 0.0, 3.0),
        Span("decode", "rollout-2", 3.0, 6.0),
    ]
    assert seconds(spans) == {"decode": 6.0}


def test_a_rollout_in_the_queue_waits_for_the_one_before() -> None:
    spans = list(rollout_steps(steps=1, rollouts=3, concurrency=1, turns=1, decode_s=1.0, tool_s=0.5))
    assert seconds(spans) == {"decode": 3.0, "tool": 1.5, "forward": 0.4, "backward": 0.6}


def test_a_collective_waits_for_the_rank_that_comes_last() -> None:
    spans = [
        *trainer_step(0.0, 1, [("data", 0.1), ("communication", 2.0), ("forward", 1.0)]),
        *trainer_step(0.0, 1, [("data", 1.9), ("communication", 0.2), ("forward", 1.0)], lane="trainer-rank1"),
    ]
    assert seconds(spans) == {"data": 1.9, "communication": 0.2, "forward": 1.0}


def test_a_wait_that_nothing_ended_counts_as_a_wait() -> None:
    assert seconds(trainer_step(0.0, 1, [("rollouts", 2.0), ("forward", 1.0)])) == {"rollouts": 2.0, "forward": 1.0}


def test_a_step_of_no_spans_is_other() -> None:
    assert seconds([Span("step", "trainer-rank0", 1.0, 3.0, 1)]) == {"other": 2.0}
    assert find_window([Span("forward", "trainer-rank0", 1.0, 3.0, 1)], 0) is None
