"""The written histories are judged as the facts ask, and no run that lives is ever resumable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.verdict.remote_reading import RemoteReading
from prime_train.away.verdict.remote_verdict import Expectation, judge
from prime_train.core.errors import ExitCode
from tests.unit.away.histories import HISTORIES, History, reading_of


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_a_history_is_judged_rightly(history: History) -> None:
    readings = [reading_of(history, poll) for poll in history.polls]
    found = judge(readings, history.expectation)
    assert (found.verdict, found.resumable, found.is_complete) == (
        history.verdict,
        history.resumable,
        history.is_complete,
    ), found
    assert found.why
    assert not (history.lives and found.resumable), found


def test_there_are_twenty_histories_and_more() -> None:
    assert len({history.name for history in HISTORIES}) == len(HISTORIES) >= 20
    assert {history.verdict for history in HISTORIES} == {"alive", "slow", "stalled", "crashed", "finished", "unknown"}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("it trains", ExitCode.OK),
        ("it finished", ExitCode.OK),
        ("it hangs: system metrics go on, and its GPUs are idle", ExitCode.FINDINGS),
        ("its steps take eight times as long as the config promises", ExitCode.FINDINGS),
        ("the login is not accepted", ExitCode.OUT_OF_REACH),
        ("it failed on its config", ExitCode.RUN_FAILED),
        ("it ended early without an error", ExitCode.RUN_FAILED),
        ("it saved on a notice of its cloud and ended with 75", ExitCode.RESUMABLE),
    ],
)
def test_scripts_get_an_exit_code(name: str, code: ExitCode) -> None:
    history = next(history for history in HISTORIES if history.name == name)
    assert judge([reading_of(history, poll) for poll in history.polls], history.expectation).exit_code == code


def test_nothing_is_judged_without_a_reading() -> None:
    assert judge([]).verdict == "unknown"


def test_steps_may_count_from_zero_and_be_logged_now_and_then() -> None:
    ended = RemoteReading(1e9, state="finished", step=999, max_steps=1000)
    assert judge([ended]).is_complete
    assert judge([replace(ended, step=990, log_every_steps=10)]).is_complete
    assert not judge([replace(ended, step=989, log_every_steps=10)]).is_complete
    assert judge([replace(ended, max_steps=None)], Expectation(max_steps=2000)).verdict == "finished"
    assert not judge([ended], Expectation(max_steps=2000)).is_complete


_times = st.floats(min_value=0, max_value=1e6)
_readings = st.builds(
    RemoteReading,
    observed_s=_times,
    state=st.sampled_from(["running", "crashed", "failed", "finished", "killed", "preempted", "pending", "odd"]),
    heartbeat_s=st.none() | _times,
    created_s=st.none() | _times,
    step=st.none() | st.integers(0, 1000),
    last_step_s=st.none() | _times,
    system_metrics_s=st.none() | _times,
    gpu_busy=st.none() | st.floats(0, 1),
    step_s=st.none() | st.floats(0.01, 1e4),
    max_steps=st.none() | st.integers(1, 1000),
    exit_code=st.none() | st.sampled_from([0, 1, 5, 6, 75, 255]),
    cause_class=st.sampled_from(["", "hardware", "config"]),
    run_dir_s=st.none() | _times,
    job=st.sampled_from(["", "lives", "ended"]),
    problem=st.sampled_from(["", "", "", "no_answer"]),
)


@given(st.lists(_readings, min_size=1, max_size=5))
def test_what_is_resumable_is_dead_by_two_polls_and_a_second_witness(readings: list[RemoteReading]) -> None:
    readings = sorted(readings, key=lambda reading: reading.observed_s)
    newest, found = readings[-1], judge(readings)
    if not found.resumable:
        return
    assert found.verdict == "crashed"
    assert not newest.problem
    assert len([reading for reading in readings if not reading.problem]) >= 2
    assert newest.state != "killed"
    if newest.state in ("running", "crashed"):
        assert newest.job != "lives"
        assert newest.job == "ended" or newest.run_dir_s is not None
        assert newest.heartbeat_s is not None
        assert newest.observed_s - newest.heartbeat_s >= 45 * 60


@given(st.lists(_readings, min_size=1, max_size=4), st.floats(1, 1e5))
def test_a_run_whose_heartbeat_follows_the_clock_is_never_resumable(
    readings: list[RemoteReading], ahead_s: float
) -> None:
    """However wrong the poller's clock is."""
    moved = [
        replace(
            reading, state="crashed", problem="", run_dir_s=None, observed_s=60.0 * at + ahead_s, heartbeat_s=60.0 * at
        )
        for at, reading in enumerate(readings, 1)
    ]
    assert not judge(moved).resumable


# --- one rule each ------------------------------------------------------------------------------------

NOW_S = 1_000_000.0
MIN_S = 60.0


def live(**changes: object) -> RemoteReading:
    """A run that trains: step 100 a minute ago, GPUs busy."""
    reading = RemoteReading(
        NOW_S,
        state="running",
        heartbeat_s=NOW_S - 20,
        created_s=NOW_S - 36_000,
        step=100,
        last_step_s=NOW_S - MIN_S,
        system_metrics_s=NOW_S - 30,
        gpu_busy=0.9,
    )
    return replace(reading, **changes)  # type: ignore[arg-type]


def earlier(reading: RemoteReading, before_s: float = MIN_S, **changes: object) -> RemoteReading:
    """The same look, made earlier."""
    return replace(reading, observed_s=reading.observed_s - before_s, **changes)  # type: ignore[arg-type]


def silent(age_s: float, **changes: object) -> RemoteReading:
    at_s = NOW_S - age_s
    return live(state="crashed", heartbeat_s=at_s, last_step_s=at_s, system_metrics_s=at_s, **changes)


def verdict(*readings: RemoteReading, **expected: float) -> tuple[str, bool]:
    found = judge(readings, Expectation(**expected))  # type: ignore[arg-type]
    return found.verdict, found.resumable


def test_a_run_without_a_heartbeat_for_a_while_is_no_longer_alive() -> None:
    late = live(heartbeat_s=NOW_S - 14 * MIN_S)
    assert verdict(earlier(late), late) == ("alive", False)
    later = live(heartbeat_s=NOW_S - 16 * MIN_S)
    assert verdict(earlier(later), later) == ("unknown", False)


def test_two_polls_in_one_moment_are_one_poll() -> None:
    dead = silent(60 * MIN_S, job="ended")
    assert verdict(earlier(dead, 44.0), dead) == ("unknown", False)
    assert verdict(earlier(dead, 45.0), dead) == ("crashed", True)


def test_a_heartbeat_between_two_polls_shows_life_only_at_that_time() -> None:
    """It died a minute after the first poll, and the second one came an hour later."""
    dead = silent(59 * MIN_S)
    before = live(observed_s=NOW_S - 60 * MIN_S, heartbeat_s=NOW_S - 60 * MIN_S - 20)
    assert verdict(before, dead) == ("unknown", False)


def test_a_heartbeat_from_the_future_that_does_not_move_proves_nothing() -> None:
    ahead = live(heartbeat_s=NOW_S + 10 * MIN_S)
    assert verdict(earlier(ahead), ahead) == ("unknown", False)
    assert verdict(earlier(ahead, heartbeat_s=NOW_S + 9 * MIN_S), ahead) == ("alive", False)


def test_what_its_cloud_still_runs_is_never_started_again() -> None:
    quiet = NOW_S - 60 * MIN_S
    hung = silent(60 * MIN_S, job="lives", run_dir_s=quiet)
    assert verdict(earlier(hung), hung) == ("stalled", False)
    gone = replace(hung, job="")
    assert verdict(earlier(gone), gone) == ("crashed", True)
    days = silent(3 * 86_400.0, job="lives")
    assert verdict(earlier(days), days) == ("unknown", False)
    assert verdict(earlier(replace(days, job="")), replace(days, job="")) == ("crashed", False)


def test_a_stall_needs_two_polls_with_the_same_step() -> None:
    idle = live(last_step_s=NOW_S - 50 * MIN_S, gpu_busy=0.0)
    assert verdict(idle) == ("unknown", False)
    assert verdict(earlier(idle, step=99), idle) == ("unknown", False)
    assert verdict(earlier(idle), idle) == ("stalled", False)


def test_a_stall_needs_a_second_witness() -> None:
    blind = live(system_metrics_s=None, gpu_busy=None)
    assert verdict(earlier(blind, 50 * MIN_S, heartbeat_s=NOW_S - 51 * MIN_S), blind) == ("unknown", False)
    quiet = replace(blind, run_dir_s=NOW_S - 50 * MIN_S)
    assert verdict(earlier(quiet, 50 * MIN_S, heartbeat_s=NOW_S - 51 * MIN_S), quiet) == ("stalled", False)


def test_steps_that_stand_still_over_polls_count_if_system_metrics_are_late_too() -> None:
    idle = live(system_metrics_s=NOW_S - MIN_S, last_step_s=NOW_S - 2 * MIN_S, gpu_busy=0.0)
    before = earlier(idle, 50 * MIN_S, heartbeat_s=NOW_S - 51 * MIN_S)
    assert verdict(before, idle) == ("stalled", False)


def test_a_median_step_of_three_times_the_expected_is_slow() -> None:
    assert verdict(live(step_s=31.0), step_s=10.0) == ("slow", False)
    assert verdict(live(step_s=30.0), step_s=10.0) == ("alive", False)
    assert verdict(live(step_s=31.0)) == ("alive", False)


def test_steps_between_two_polls_are_slow_beyond_the_time_of_a_checkpoint() -> None:
    """Ten steps of 10 s, three times as long, and ten minutes for a checkpoint: 15 min."""
    late = live(heartbeat_s=NOW_S - 20)
    for took_s, expected in ((900.0, "alive"), (901.0, "slow")):
        before = earlier(late, 1200.0, step=90, last_step_s=late.last_step_s - took_s, heartbeat_s=NOW_S - 1220)  # type: ignore[operator]
        assert verdict(before, late, step_s=10.0) == (expected, False)
