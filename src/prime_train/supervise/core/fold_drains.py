"""Finds the requests of the policy about GPUs: to go on without one, and to use it again after its test. Pure.

The answers of the run check them like a person's: a drain that leaves too few GPUs is refused there.
"""

from __future__ import annotations

from prime_train.supervise.core.state import POLICY, State
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, Request

DRAIN_EVERY_S = 1800.0  # each drain costs a save and a start
OF_RISK = "drain-gpu-"  # of a GPU that was only at risk, so a test that it passes is an answer
OF_TEST = "test-"  # of a GPU that leaves for its test alone


def find_gpu_request(state: State, now_s: float) -> Request | None:
    """The next request; None without one."""
    return find_drain(state, now_s) or find_return(state)


def find_drain(state: State, now_s: float) -> Request | None:
    """The request to go on without the GPU that a standing alarm names; None without one, and soon after another."""
    is_soon = state.drained_s is not None and now_s - state.drained_s < DRAIN_EVERY_S
    if is_soon or state.live is None or state.stop_requested_s is not None:
        return None
    for alarm in (active.alarm for active in state.alarms if active.alarm.answer in ("drain", "test")):
        request_id = f"{alarm.answer}-{alarm.watch}-{alarm.where}-{state.attempt_number}"
        if alarm.where and alarm.where not in state.left_out and request_id not in state.answered:
            body = {"command": "drain", "gpus": [alarm.where], "by": POLICY, "why": alarm.what[:200]}
            return Request(COMMAND_REQUESTED, request_id, body)
    return None


def find_return(state: State) -> Request | None:
    """The request to use a GPU again that was drained for its risk or its test, and passed."""
    for test in state.gpu_tests:
        request_id = f"return-{test.request_id.partition('-')[2]}"
        is_well = test.passed and test.request_id.startswith((OF_RISK, OF_TEST)) and test.gpu in state.left_out
        if is_well and request_id not in state.answered:
            body = {"command": "return", "gpus": [test.gpu], "by": POLICY, "why": "it passed its test"}
            return Request(COMMAND_REQUESTED, request_id, body)
    return None
