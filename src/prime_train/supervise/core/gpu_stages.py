"""Finds where a GPU is on its way from a suspicion to its test and back. Pure: a function of the State."""

from __future__ import annotations

from typing import Literal

from prime_train.supervise.core.fold_commands import DRAINS
from prime_train.supervise.core.state import State

# "condemned": it failed its test, or ended two attempts, and no attempt uses it. "returned": it passed, and is used.
Stage = Literal["ok", "suspect", "draining", "testing", "condemned", "returned"]
SUSPICIONS = ("gpu_at_risk", "slow_rank")  # alarms


def find_stage(state: State, gpu: str) -> Stage:
    """The stage of a GPU, by its UUID."""
    open_ones = [
        one for one in state.commands if gpu in one.accepted.gpus and one.accepted.command in (*DRAINS, "test")
    ]
    if any(one.is_sent for one in open_ones):
        return "testing"
    test = next((one for one in state.gpu_tests if one.gpu == gpu), None)
    if gpu in state.left_out:
        is_well = test is not None and test.passed  # a person keeps it out
        is_drained = any(one.accepted.command in DRAINS for one in open_ones)
        return "draining" if is_drained or is_well else "condemned"
    named = [active.alarm for active in state.alarms if active.alarm.where == gpu and active.alarm.answer != "note"]
    if any(alarm.name in SUSPICIONS for alarm in named):
        return "suspect"
    return "returned" if test is not None and test.passed else "ok"
