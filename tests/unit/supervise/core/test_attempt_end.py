"""The evidence of an attempt, and whether a requested stop ended it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmRaised
from prime_train.supervise.core.attempt_end import build_end_event, collect_evidence
from prime_train.supervise.core.policy import Policy
from prime_train.supervise.core.state import AttemptState, ChildProcess, Live, PendingKill, State, TrainerExit
from prime_train.supervise.evidence.diagnose import EndCause, judge
from prime_train.supervise.processes.process import Exited

LOST = AlarmRaised(1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "it is lost", "a riser", "", "GPU-1", 3)
BY_FILE, BY_SIGNAL = Policy(), Policy(stops_by_file=False)


def live(roles: tuple[str, ...] = ("trainer",), started: int = 1, **more: object) -> Live:
    children = tuple(ChildProcess(role, 1, 1, f"/nowhere/{role}.log") for role in roles[:started])
    return Live(1, 0.0, roles=roles, services=roles[:-1], children=children, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "policy", "saves", "outcome"),
    [
        (live(), BY_SIGNAL, True, "stopped"),
        (live(), BY_FILE, False, "stopped"),
        (live(), BY_FILE, True, "failed"),  # it was to save, and fell
        (live(("inference", "trainer"), 1), BY_FILE, True, "stopped"),  # nothing trained yet
        (live(started=0), BY_FILE, True, "stopped"),
        (live(pending_kill=PendingKill(LOST, 0.0)), BY_SIGNAL, True, "failed"),  # it was at fault before it was asked
        (
            live(trainer_exit=TrainerExit("finished", 1.0, 40)),
            BY_SIGNAL,
            True,
            "finished",
        ),  # it was through when it was asked
    ],
)
def test_a_program_that_was_asked_to_end_has_stopped_unless_more_is_known(
    tmp_path: Path, attempt: Live, policy: Policy, saves: bool, outcome: str
) -> None:
    state = State(max_steps=40, live=attempt, stop_requested_s=1.0, stop_saves=saves)
    left = collect_evidence(state, attempt, policy, RunDir(tmp_path), Exited(1, "trainer", 1))
    assert judge(state, attempt, left).outcome == outcome


def test_of_an_attempt_that_was_given_up_the_log_of_what_was_started_is_named(tmp_path: Path) -> None:
    attempt = live(("prime_rl",))
    left = collect_evidence(State(live=attempt), attempt, BY_SIGNAL, RunDir(tmp_path), None)
    assert (left.returncode, left.role, left.log) == (None, "prime_rl", Path("/nowhere/prime_rl.log"))


def test_an_end_names_the_newest_checkpoint_that_loads_and_no_secret(tmp_path: Path) -> None:
    found = [SavedCheckpoint(step, str(tmp_path), 9, "torn" if step == 30 else "") for step in (30, 20, 10)]
    cause = EndCause(
        "failed", "auth", "the token hf_0123456789abcdef was refused", "it is old", "log in", "/log:3", "HF1"
    )
    event = build_end_event(
        State(attempts=(AttemptState(2),), unreadable=(20,)), 1, cause, found, ("hf_0123456789abcdef",)
    )
    assert (event.attempt, event.newest_complete, event.cause_id) == (2, 10, "HF1")
    assert "0123456789abcdef" not in event.what
