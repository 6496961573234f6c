"""The written histories are judged as the facts ask, and no run that lives is ever resumable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cloud.remote_verdict import Expectation, RemoteReading, judge
from prime_train.core.errors import ExitCode
from tests.cloud.histories import HISTORIES, History, reading_of


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
