from __future__ import annotations

import pytest

from prime_train.away.sky.job_end import ELSEWHERE, RECOVERED, translate
from prime_train.core.errors import ExitCode
from prime_train.supervise.core.state import AttemptState, State


def state(*causes: str, stop_by: str = "", fruitful: bool = False) -> State:
    attempts = tuple(
        AttemptState(number, outcome="failed", cause_class=cause, fruitful=fruitful)
        for number, cause in enumerate(causes, start=1)
    )
    return State(attempts=attempts, stop_by=stop_by)


def test_hardware_that_failed_is_left_for_another_machine() -> None:
    assert translate(6, state("hardware", "hardware", "hardware")) == ELSEWHERE
    assert ELSEWHERE in RECOVERED
    assert ELSEWHERE not in {int(code) for code in ExitCode}


def test_other_failures_keep_their_code() -> None:
    assert translate(6, state("network")) == 6
    for code in (0, 1, 2, 3, 4, 5, 75, 137, 143):
        assert translate(code, state("hardware")) == code


def test_hardware_cannot_be_the_cause_for_ever() -> None:
    assert translate(6, state(*["hardware"] * 7)) == 6
    assert translate(6, state(*["hardware"] * 7, fruitful=True)) == ELSEWHERE


def test_a_full_disk_is_not_paid_for_again() -> None:
    full = "the disk is full after the next save"
    assert translate(75, state(stop_by=full), frozenset({full})) == 6
    assert translate(75, state(stop_by="SIGTERM"), frozenset({full})) == 75


@pytest.mark.parametrize("code", [code for code in ExitCode if code != ExitCode.RESUMABLE])
def test_no_final_code_is_recovered(code: ExitCode) -> None:
    assert code not in RECOVERED


def test_stopped_but_resumable_is_recovered() -> None:
    assert ExitCode.RESUMABLE in RECOVERED


def test_a_machine_that_never_came_is_replaced() -> None:
    missing = State(attempts=(AttemptState(1, outcome="failed", cause_class="hardware", cause_id="machine_missing"),))
    assert translate(5, missing) == ELSEWHERE
    assert translate(4, missing) == 4
