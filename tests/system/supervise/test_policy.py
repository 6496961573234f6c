"""decide() over written histories, and over random worlds in which a trainer does anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import ExitCode
from prime_train.events import (
    ActivitySeen,
    AlarmCleared,
    AlarmRaised,
    AttemptEnded,
    BatchShrunk,
    CheckpointSaved,
    CheckpointStarted,
    CheckpointUnreadable,
    ChildStarted,
    ClockJumped,
    Event,
    EvidenceKept,
    GpuLeftOut,
    HangFound,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    ServiceReady,
    SignalSent,
    StopAsked,
    StopListened,
    TrainerEvent,
    TrainerFailed,
    TrainerFinished,
    TrainerStopped,
)
from prime_train.programs import program_of
from prime_train.programs.bundled import PROGRAM
from prime_train.spec import ENDLESS_STEPS
from prime_train.spec.supervision import Heartbeat, PrimeTrain, Recovery, Restart, Watches
from prime_train.supervise.core import actions
from prime_train.supervise.core import policy as rules
from prime_train.supervise.core.fold import fold, fold_all
from prime_train.supervise.core.policy import Policy, decide
from prime_train.supervise.core.state import State
from prime_train.supervise.evidence.diagnose import OOM_KILLER
from prime_train.supervise.machines.liveness import GONE_S, LOST_S
from prime_train.supervise.watches.hang import silence_limits
from tests.fakes.supervisor import fake_run

STEP_LIMIT_S = 300.0
POLICY = Policy(max_fruitless_attempts=3, backoff_s=1.0, backoff_max_s=60.0, step_limit_s=STEP_LIMIT_S)
OPENED = RunOpened("r", 1, 300, "0.1")


def history(*events: tuple[float, Event]) -> State:
    """The state after the supervisor's events at these times; trainers' events come from a writer of their own."""
    state = State()
    for number, (time_s, event) in enumerate(events):
        trainers = isinstance(event, TrainerEvent)
        state = fold(state, Record(time_s, "trainer" if trainers else "supervisor", number, event))
    return state


def launched(attempt: int = 1, at_s: float = 0.0, resume_step: int = 0) -> list[tuple[float, Event]]:
    return [
        (at_s, LaunchAsked(attempt, resume_step)),
        (at_s, ChildStarted(attempt, "trainer", 10 + attempt, 1, "log")),
    ]


def ended(attempt: int, at_s: float, cause_class: str = "unknown", newest: int = 0) -> tuple[float, Event]:
    return (at_s, AttemptEnded(attempt, 1, "failed", cause_class, "boom", "why", "fix", "where", newest))


# --- written histories ------------------------------------------------------------------------------


def test_the_policy_is_what_the_config_asks_for() -> None:
    asked = PrimeTrain(
        restart=Restart(max_fruitless_attempts=7, backoff_s=2.0, backoff_max_s=5.0),
        heartbeat=Heartbeat(startup_limit_s=11.0, step_limit_s=12.0, slow_phase_limit_s=13.0),
        stop_grace_s=14.0,
    )
    found = rules.build_policy(replace(fake_run(Path("/runs/a"), 10), prime_train=asked), PROGRAM)
    assert found == Policy(7, 2.0, 5.0, 11.0, 12.0, 13.0, 14.0)


def test_a_run_that_was_opened_is_launched() -> None:
    assert decide(history((0.0, OPENED)), POLICY, 0.0) == actions.PlanLaunch(1)


def test_after_the_last_number_that_an_attempt_can_have_the_run_is_closed() -> None:
    """The next number would not be read back, so the launch would be repeated for ever."""
    state = fold_all([Record(0.0, "supervisor", 0, OPENED), Record(1.0, "supervisor", 1, LaunchAsked(10**6, 0))])
    ended = AttemptEnded(10**6, -9, "failed", "signal", "it was killed", "", "", "", 0)
    state = fold(state, Record(2.0, "supervisor", 2, ended))
    found = decide(state, POLICY, 1000.0)
    assert isinstance(found, actions.Close)
    assert found.exit_code == ExitCode.RUN_FAILED
    assert "1,000,000" in found.reason


def test_a_crash_is_retried_after_a_wait_that_doubles() -> None:
    events = [(0.0, OPENED), *launched(1), ended(1, 10.0)]
    assert decide(history(*events), POLICY, 10.5) == actions.Wait(11.0)
    assert decide(history(*events), POLICY, 11.0) == actions.PlanLaunch(2)
    events += [*launched(2, 11.0), ended(2, 20.0)]
    assert decide(history(*events), POLICY, 21.9) == actions.Wait(22.0)


@pytest.mark.parametrize(("fruitless", "wait_s"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (10_000, 60.0)])
def test_back_off(fruitless: int, wait_s: float) -> None:
    assert rules.compute_backoff_s(fruitless, POLICY) == wait_s


def test_the_third_attempt_without_a_checkpoint_is_the_last() -> None:
    events = [(0.0, OPENED), *launched(1), ended(1, 1.0), *launched(2, 2.0), ended(2, 3.0), *launched(3, 5.0)]
    action = decide(history(*events, ended(3, 6.0)), POLICY, 100.0)
    assert isinstance(action, actions.Close)
    assert (action.state, action.exit_code) == ("failed", ExitCode.RETRIES_SPENT)


def test_a_checkpoint_on_the_way_fills_the_budget_again() -> None:
    events = [(0.0, OPENED), *launched(1), ended(1, 1.0), *launched(2, 2.0), ended(2, 3.0)]
    events += [*launched(3, 5.0), ended(3, 6.0, newest=40)]
    assert decide(history(*events), POLICY, 100.0) == actions.PlanLaunch(4)


def test_writing_the_same_checkpoint_again_is_no_progress() -> None:
    """Each attempt resumes from 20, saves 40 and leaves it unreadable."""
    events = [(0.0, OPENED), *launched(1), ended(1, 1.0, newest=40)]
    for attempt in (2, 3, 4):
        events += [*launched(attempt, attempt * 10.0, 20), ended(attempt, attempt * 10.0 + 1, newest=40)]
    action = decide(history(*events), POLICY, 1000.0)
    assert isinstance(action, actions.Close)
    assert action.exit_code == ExitCode.RETRIES_SPENT


@pytest.mark.parametrize("cause_class", ["config", "auth", "bug", "disk", "env", "oom"])
def test_what_would_fail_the_same_way_is_not_retried(cause_class: str) -> None:
    action = decide(history((0.0, OPENED), *launched(), ended(1, 1.0, cause_class)), POLICY, 100.0)
    assert isinstance(action, actions.Close)
    assert action.exit_code == ExitCode.RUN_FAILED


def test_an_unreadable_checkpoint_is_retried_for_any_class() -> None:
    unreadable = (1.0, CheckpointUnreadable(1, 40, "bad bytes"))
    state = history((0.0, OPENED), *launched(1, 0.0, 40), unreadable, ended(1, 2.0, "disk", newest=20))
    assert decide(state, POLICY, 100.0) == actions.PlanLaunch(2)


def test_a_new_supervisor_has_a_new_budget() -> None:
    events = [(0.0, OPENED), *launched(1), ended(1, 1.0, "config"), (2.0, RunClosed("failed", 5, "x")), (9.0, OPENED)]
    assert decide(history(*events), POLICY, 9.0) == actions.PlanLaunch(2)


@pytest.mark.parametrize(
    ("events", "silent_from_s", "limit_s"),
    [
        ([], 0.0, POLICY.startup_limit_s),
        ([(5.0, Phase(1, "data"))], 5.0, POLICY.startup_limit_s),
        ([(5.0, Phase(1, "evaluate"))], 5.0, POLICY.slow_phase_limit_s),
        ([(6.0, Progress(1, 1, 2.0, 3.0, 4))], 6.0, STEP_LIMIT_S),
        ([(6.0, Progress(1, 1, 2.0, 3.0, 4)), (7.0, Phase(1, "export"))], 7.0, POLICY.slow_phase_limit_s),
        ([(6.0, Progress(1, 1, 2.0, 3.0, 4)), (7.0, Phase(1, "train"))], 7.0, STEP_LIMIT_S),
    ],
)
def test_silence_is_a_hang_by_the_limit_of_its_phase(
    events: list[tuple[float, Event]], silent_from_s: float, limit_s: float
) -> None:
    state = history((0.0, OPENED), *launched(), *events)
    until_s = silent_from_s + limit_s
    assert decide(state, POLICY, silent_from_s + 1.0) == actions.Wait(until_s - rules.SUSPECT_S)
    assert decide(state, POLICY, until_s - 1.0) == actions.Suspect(1, until_s)
    found = decide(state, POLICY, silent_from_s + limit_s + 1.0)
    assert isinstance(found, actions.FindHang)
    assert found.silent_s == pytest.approx(limit_s + 1.0)


def test_a_hang_leaves_its_stacks_and_is_killed() -> None:
    events = [(0.0, OPENED), *launched(), (1000.0, HangFound(1, 999.0, 900.0, "data"))]
    assert decide(history(*events), POLICY, 1000.0) == actions.KeepEvidence(1)
    patience = 1000.0 + POLICY.evidence_limit_s
    assert decide(history(*events), POLICY, patience) == actions.Signal(1, "SIGABRT", "it hangs; stacks go to the log")
    events.append((1000.0, EvidenceKept(1, "evidence", ("stacks",))))
    assert decide(history(*events), POLICY, 1000.0) == actions.Signal(1, "SIGABRT", "it hangs; stacks go to the log")
    events.append((1000.0, SignalSent(1, "SIGABRT", "")))
    assert decide(history(*events), POLICY, 1001.0) == actions.Wait(1002.0)
    assert decide(history(*events), POLICY, 1002.0) == actions.Signal(1, "SIGKILL", "it hangs")


def test_a_stop_asks_then_terminates_then_kills() -> None:
    events = [(0.0, OPENED), *launched(), (1.0, StopAsked("SIGTERM"))]
    assert decide(history(*events), POLICY, 1.0) == actions.AskStop(1, "SIGTERM")
    events.append((1.0, SignalSent(1, "stop_requested", "")))
    assert decide(history(*events), POLICY, 60.0) == actions.Wait(61.0)
    action = decide(history(*events), POLICY, 61.0)
    assert isinstance(action, actions.Signal)
    assert action.signal == "SIGTERM"
    events.append((61.0, SignalSent(1, "SIGTERM", "")))
    assert decide(history(*events), POLICY, 65.0) == actions.Wait(66.0)
    action = decide(history(*events), POLICY, 66.0)
    assert isinstance(action, actions.Signal)
    assert action.signal == "SIGKILL"


def test_asking_again_does_not_wait_for_the_checkpoint_but_a_doubled_signal_is_one_wish() -> None:
    events = [(0.0, OPENED), *launched(), (1.0, StopAsked("SIGTERM")), (1.0, SignalSent(1, "stop_requested", ""))]
    doubled = history(*events, (1.2, StopAsked("SIGTERM")))
    assert decide(doubled, POLICY, 2.0) == actions.Wait(61.0)
    again = history(*events, (4.0, StopAsked("SIGINT")))
    assert decide(again, POLICY, 4.0) == actions.Signal(1, "SIGTERM", "a second stop request")


def test_who_stops_a_run_that_a_watch_has_paused_asks_for_the_first_time() -> None:
    events = [(0.0, OPENED), *launched(), (1.0, StopAsked("full in 3 min")), (1.0, SignalSent(1, "stop_requested", ""))]
    events += [(30.0, StopAsked("SIGTERM")), (30.2, StopAsked("SIGTERM"))]
    assert decide(history(*events), POLICY, 31.0) == actions.Wait(30.0 + POLICY.stop_grace_s)
    assert history(*events).stop_by == "SIGTERM, after full in 3 min"
    assert decide(history(*events, (40.0, StopAsked("SIGTERM"))), POLICY, 40.0) == actions.Signal(
        1, "SIGTERM", "a second stop request"
    )


def test_a_machine_that_slept_is_no_hang_and_uses_up_no_grace() -> None:
    awake = [(0.0, OPENED), *launched(), (6.0, Progress(1, 1, 2.0, 3.0, 4))]
    slept = (10_000.0, ClockJumped(9_900.0))
    until_s = 6.0 + 9_900.0 + STEP_LIMIT_S - rules.SUSPECT_S
    assert decide(history(*awake, slept), POLICY, 10_000.0) == actions.Wait(until_s)
    stopping = [*awake, (90.0, StopAsked("SIGINT")), (90.0, SignalSent(1, "stop_requested", ""))]
    assert decide(history(*stopping, slept), POLICY, 10_000.0) == actions.Wait(90.0 + 9_900.0 + POLICY.stop_grace_s)
    assert decide(history((0.0, OPENED), *launched(), ended(1, 9.5), slept), POLICY, 9_910.0) == actions.Wait(9_910.5)


def test_a_stop_between_attempts_launches_no_other() -> None:
    state = history((0.0, OPENED), *launched(), ended(1, 1.0), (1.5, StopAsked("SIGINT")))
    action = decide(state, POLICY, 100.0)
    assert isinstance(action, actions.Close)
    assert (action.state, action.exit_code) == ("stopped", ExitCode.RESUMABLE)


def test_a_trainer_that_reported_its_end_and_stays_is_killed() -> None:
    state = history((0.0, OPENED), *launched(), (9.0, TrainerFinished(1, 300, 1.0, "x")))
    assert decide(state, POLICY, 10.0) == actions.Wait(9.0 + POLICY.exit_grace_s)
    action = decide(state, POLICY, 9.0 + POLICY.exit_grace_s)
    assert isinstance(action, actions.Signal)
    assert action.signal == "SIGKILL"


def restart_alarm(attempt: int) -> AlarmRaised:
    return AlarmRaised(attempt, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "it is lost", "", "", "GPU-1", 3)


@pytest.mark.parametrize("why", [restart_alarm(1), StopAsked("SIGINT"), StopAsked("the disk is full", saves=False)])
def test_an_attempt_of_which_nothing_was_started_is_given_up(why: Event) -> None:
    """There is no exit to wait for."""
    state = history((0.0, OPENED), (0.0, LaunchAsked(1, 0)), (0.1, why))
    assert decide(state, POLICY, 0.2) == actions.GiveUp(1)


@pytest.mark.parametrize("stops_by_file", [True, False])
def test_a_process_that_outlives_its_kill_is_not_waited_for_without_end(stops_by_file: bool) -> None:
    policy = replace(POLICY, stops_by_file=stops_by_file)
    events = [(0.0, OPENED), *launched(), (1.0, StopAsked("SIGTERM")), (1.0, SignalSent(1, "stop_requested", ""))]
    events += [(61.0, SignalSent(1, "SIGTERM", "")), (66.0, SignalSent(1, "SIGKILL", ""))]
    assert decide(history(*events), policy, 70.0) == actions.Wait(66.0 + policy.kill_limit_s)
    assert decide(history(*events), policy, 66.0 + policy.kill_limit_s) == actions.GiveUp(1)


def test_a_server_that_still_loads_is_not_asked_by_a_file_that_it_does_not_look_for() -> None:
    roles = ("inference", "trainer")
    events: list[tuple[float, Event]] = [(0.0, OPENED), (0.0, LaunchAsked(1, 0, (), roles, roles[:1]))]
    events += [(0.0, ChildStarted(1, "inference", 10, 1, "log")), (5.0, StopAsked("SIGINT"))]
    assert decide(history(*events), POLICY, 5.0) == actions.Signal(1, "SIGTERM", "SIGINT", roots=True)
    events.append((5.0, SignalSent(1, "SIGTERM", "")))
    assert decide(history(*events), POLICY, 6.0) == actions.Wait(5.0 + POLICY.term_grace_s)


def test_an_alarm_leaves_an_attempt_that_is_to_stop_the_time_to_save() -> None:
    events = [(0.0, OPENED), *launched(), (1.0, StopAsked("SIGTERM")), (1.0, SignalSent(1, "stop_requested", ""))]
    assert decide(history(*events, (2.0, restart_alarm(1))), POLICY, 2.0) == actions.Wait(1.0 + POLICY.stop_grace_s)
    doomed = [(0.0, OPENED), *launched(), (0.5, restart_alarm(1)), *events[-2:]]
    assert decide(history(*doomed), POLICY, 2.0) == actions.KeepEvidence(1)


def test_a_run_whose_disk_takes_no_save_is_ended_without_one() -> None:
    alarm = ("", "pause", "disk", "the next checkpoint does not fit", "", "", "/data", 3)
    full = AlarmRaised(1, "disk", "disk_no_room", *alarm, savable=False)
    events: list[tuple[float, Event]] = [(0.0, OPENED), *launched(), (5.0, full)]
    assert decide(history(*events), POLICY, 5.0) == actions.Pause("the next checkpoint does not fit", saves=False)
    events.append((5.0, StopAsked(full.what, saves=False)))
    assert decide(history(*events), POLICY, 5.0) == actions.Signal(1, "SIGKILL", full.what)
    asked_before = [(0.0, OPENED), *launched(), (4.0, StopAsked("SIGTERM")), (4.5, SignalSent(1, "stop_requested", ""))]
    state = history(*asked_before, (5.0, full))
    assert decide(state, POLICY, 5.0) == actions.Pause("the next checkpoint does not fit", saves=False)


@pytest.mark.parametrize(
    ("micro_batch", "global_batch", "smaller"), [(8, 32, (4, 2, 1)), (6, 12, (3, 1)), (1, 4, ()), (5, 20, (2, 1))]
)
def test_smaller_micro_batches_make_the_same_global_batch(
    micro_batch: int, global_batch: int, smaller: tuple[int, ...]
) -> None:
    run = fake_run(Path("/runs/a"), 10)
    run = replace(run, batch=replace(run.batch, micro_batch=micro_batch, global_batch=global_batch))
    assert rules.list_smaller_micro_batches(run) == smaller


@pytest.mark.parametrize(("kind", "smaller"), [("pretrain", (4, 2, 1)), ("serve", ())])
def test_a_smaller_micro_batch_is_tried_where_something_reads_it(
    kind: Literal["pretrain", "serve"], smaller: tuple[int, ...]
) -> None:
    run = fake_run(Path("/runs/a"), 10)
    run = replace(run, batch=replace(run.batch, micro_batch=8), run=replace(run.run, kind=kind))
    run = replace(run, prime_train=PrimeTrain(recovery=Recovery(on_oom="shrink")))
    assert rules.build_policy(run, program_of(run)).micro_batches == smaller


def test_memory_that_ran_out_is_answered_by_a_smaller_micro_batch_until_there_is_none() -> None:
    policy = replace(POLICY, micro_batches=(4, 2))
    events: list[tuple[float, Event]] = [(0.0, OPENED), *launched(1), ended(1, 1.0, "oom")]
    assert decide(history(*events), policy, 2.0) == actions.Shrink(1, 4)
    events.append((2.0, BatchShrunk(1, 4)))
    assert decide(history(*events), policy, 100.0) == actions.PlanLaunch(2)
    events += [*launched(2, 100.0), ended(2, 101.0, "oom")]
    assert decide(history(*events), policy, 102.0) == actions.Shrink(2, 2)
    events += [(102.0, BatchShrunk(2, 2)), *launched(3, 200.0), ended(3, 201.0, "oom")]
    action = decide(history(*events), policy, 300.0)
    assert isinstance(action, actions.Close)
    assert action.exit_code == ExitCode.RUN_FAILED


@pytest.mark.parametrize(
    ("cause_id", "newest", "again"),
    [("", 20, False), ("CUDA001", 20, False), (OOM_KILLER, 20, True), (OOM_KILLER, 0, False)],
)
def test_memory_that_ran_out_is_tried_again_after_the_kernels_killer_and_a_save_alone(
    cause_id: str, newest: int, again: bool
) -> None:
    end = AttemptEnded(1, 1, "failed", "oom", "boom", "", "", "", newest, cause_id)
    action = decide(history((0.0, OPENED), *launched(1), (1.0, end)), POLICY, 100.0)
    assert isinstance(action, actions.PlanLaunch) == again


@pytest.mark.parametrize(("retry", "cause_class", "again"), [("yes", "bug", True), ("no", "network", False)])
def test_what_a_signature_states_of_another_try_comes_before_its_class(
    retry: str, cause_class: str, again: bool
) -> None:
    end = AttemptEnded(1, 1, "failed", cause_class, "boom", "", "", "", 0, "VLLM001", retry)
    action = decide(history((0.0, OPENED), *launched(1), (1.0, end)), POLICY, 100.0)
    assert isinstance(action, actions.PlanLaunch) == again


# --- each decision at its bound -----------------------------------------------------------------------


def act(state: State, now_s: float, policy: Policy = POLICY) -> actions.Action:
    """The decision, its reason left out: there must be one, and its words are not tested here."""
    action = decide(state, policy, now_s)
    if isinstance(action, actions.Signal | actions.AskStop | actions.Pause | actions.LeaveOut | actions.Close):
        assert isinstance(action.reason, str)
        assert action.reason
        return replace(action, reason="")
    return action


BEGUN: list[tuple[float, Event]] = [(0.0, OPENED), *launched()]
FAILED = actions.Close("failed", ExitCode.RUN_FAILED, "")
STOPPED = actions.Close("stopped", ExitCode.RESUMABLE, "")
FINISHED = actions.Close("finished", ExitCode.OK, "")
SPENT = actions.Close("failed", ExitCode.RETRIES_SPENT, "")


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("stops_by_file", False, {"stops_by_file": False}),
        ("reports", False, {"reports": False}),
        ("shrinks", False, {"micro_batches": ()}),
        ("stop_signal", "SIGUSR1", {"stop_signal": "SIGUSR1"}),
        ("stops_workers", True, {"stops_workers": True}),
        ("stops_after_save", True, {"stops_after_save": True}),
        ("is_mute", True, {"is_mute": True}),
        ("", None, {}),
    ],
)
def test_the_policy_goes_as_far_as_its_program_can_follow(name: str, value: object, changed: dict[str, Any]) -> None:
    able = {"stops_by_file": True, "reports": True, "shrinks": True, "stop_signal": "SIGTERM", "is_mute": False}
    able |= {"stops_workers": False, "stops_after_save": False, name: value}
    run = fake_run(Path("/runs/a"), 10)
    run = replace(
        run, batch=replace(run.batch, micro_batch=4), prime_train=PrimeTrain(recovery=Recovery(on_oom="shrink"))
    )
    found = rules.build_policy(run, SimpleNamespace(**able))
    assert found == replace(Policy(micro_batches=(2, 1)), **changed)


@pytest.mark.parametrize(("hang", "ends"), [("restart", True), ("alert", False), ("off", False)])
def test_a_hang_is_ended_where_the_config_asks_for_it(hang: Literal["off", "alert", "restart"], ends: bool) -> None:
    run = replace(fake_run(Path("/runs/a"), 10), prime_train=PrimeTrain(watch=Watches(hang=hang)))
    assert rules.build_policy(run, PROGRAM).ends_hangs is ends
    assert rules.build_policy(run, PROGRAM).micro_batches == ()


def test_a_machine_that_is_lost_is_named_before_the_silence_that_follows() -> None:
    run = fake_run(Path("/runs/a"), 10)
    several = replace(run, parallel=replace(run.parallel, processes=2, machines=2))
    floors_s = [rules.build_policy(each, PROGRAM).silence_floor_s for each in (run, several)]
    assert floors_s[0] == silence_limits.FLOOR_S
    assert floors_s[1] > LOST_S + GONE_S
    learned = silence_limits.Learned(1, True, steps_seen=200, gaps_seen=100, largest_gap_s=0.1)
    limits = silence_limits.SilenceLimits(floor_s=floors_s[1])
    assert silence_limits.compute_limit_s(learned, "train", limits) == floors_s[1]


def end(outcome: str = "failed", cause_class: str = "unknown", **more: object) -> AttemptEnded:
    return replace(AttemptEnded(1, 1, outcome, cause_class, "boom", "", "", "", 0), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("events", "action"),
    [
        ([(0.0, OPENED), (1.0, StopAsked("SIGINT"))], STOPPED),
        ([*BEGUN, (1.0, end("finished"))], FINISHED),
        ([*BEGUN, (1.0, end("stopped"))], STOPPED),
        ([*BEGUN, (0.5, StopAsked("SIGINT")), (1.0, end("finished"))], FINISHED),
        ([*BEGUN, (0.5, StopAsked("SIGINT")), (1.0, end())], STOPPED),
        ([*BEGUN, (0.5, StopAsked("SIGINT")), (1.0, end("failed", "config"))], FAILED),
        ([*BEGUN, (1.0, end("stopped", "config"))], STOPPED),
        ([*BEGUN, (1.0, end("failed", "config"))], FAILED),
        ([*BEGUN, (1.0, end("failed", "network", retry="after_fix"))], FAILED),
        ([*BEGUN, (1.0, end("failed", "oom", cause_id=OOM_KILLER))], FAILED),
        ([*BEGUN, (1.0, end())], actions.PlanLaunch(2)),
        ([*BEGUN, (1.0, end("failed", "oom")), (2.0, BatchShrunk(1, 2))], actions.PlanLaunch(2)),
        ([*BEGUN, (1.0, end("failed", "oom")), (2.0, BatchShrunk(2, 2))], FAILED),
        ([(0.0, OPENED), *launched(1), ended(1, 1.0), *launched(2), ended(2, 1.0)], actions.PlanLaunch(3)),
        (
            [(0.0, OPENED), *launched(1), ended(1, 1.0), *launched(2), ended(2, 1.0), *launched(3), ended(3, 1.0)],
            SPENT,
        ),
    ],
)
def test_what_follows_an_attempt(events: list[tuple[float, Event]], action: actions.Action) -> None:
    assert act(history(*events), 1000.0) == action


@pytest.mark.parametrize(("count", "action"), [(2, actions.PlanLaunch(2)), (3, SPENT), (4, SPENT)])
def test_the_budget_of_fruitless_attempts(count: int, action: actions.Action) -> None:
    state = replace(history(*BEGUN, (1.0, end())), fruitless=count)
    assert act(state, 1000.0) == action


def test_a_budget_does_not_count_for_a_run_that_stops() -> None:
    state = replace(history(*BEGUN, (0.5, StopAsked("SIGINT")), (1.0, end())), fruitless=9)
    assert act(state, 1000.0) == STOPPED


@pytest.mark.parametrize(("now", "smaller"), [(None, 8), (9, 8), (8, 4), (5, 4), (4, 2), (2, None), (1, None)])
def test_the_next_smaller_micro_batch_follows_memory_that_ran_out(now: int | None, smaller: int | None) -> None:
    policy = replace(POLICY, micro_batches=(8, 4, 2))
    state = replace(history(*BEGUN, (1.0, end("failed", "oom"))), micro_batch=now)
    assert act(state, 1000.0, policy) == (FAILED if smaller is None else actions.Shrink(1, smaller))
    for other in (end("failed", "network"), end("stopped", "oom")):
        assert not isinstance(act(history(*BEGUN, (1.0, other)), 1000.0, policy), actions.Shrink)


def lost(attempt: int, gpu: str) -> list[tuple[float, Event]]:
    alarm = replace(restart_alarm(attempt), where=gpu)
    return [*launched(attempt), (0.5, alarm), ended(attempt, 1.0, "hardware")]


@pytest.mark.parametrize(
    ("gpus", "left_out", "action"),
    [
        (["GPU-2"], [], actions.PlanLaunch(2)),
        (["GPU-2", "GPU-1"], [], actions.PlanLaunch(3)),
        (["GPU-2", "GPU-2"], [], actions.LeaveOut("GPU-2", "")),
        (["GPU-2", "GPU-2"], ["GPU-2"], actions.PlanLaunch(3)),
        (["GPU-2", "GPU-1", "GPU-2", "GPU-1"], [], actions.LeaveOut("GPU-1", "")),
        (["GPU-2", "GPU-1", "GPU-2", "GPU-1"], ["GPU-1"], actions.LeaveOut("GPU-2", "")),
        (["GPU-2", "GPU-2", "GPU-2"], [], actions.LeaveOut("GPU-2", "")),
    ],
)
def test_a_gpu_that_ended_two_attempts_is_left_out(
    gpus: list[str], left_out: list[str], action: actions.Action
) -> None:
    events = [event for attempt, gpu in enumerate(gpus, 1) for event in lost(attempt, gpu)]
    state = history((0.0, OPENED), *events, *((2.0, GpuLeftOut(gpu, "")) for gpu in left_out))
    assert act(state, 1000.0, replace(POLICY, max_fruitless_attempts=9)) == action


@pytest.mark.parametrize(("fruitless", "wait_s"), [(30, 2.0**29), (31, 2.0**30), (32, 2.0**30), (1000, 2.0**30)])
def test_the_wait_doubles_thirty_times_at_most(fruitless: int, wait_s: float) -> None:
    found = rules.compute_backoff_s(fruitless, Policy(backoff_s=1, backoff_max_s=1e12))
    assert found == wait_s
    assert isinstance(found, float)


# --- a live attempt ----------------------------------------------------------------------------------

PAUSE = replace(restart_alarm(1), watch="disk", name="disk_fills", answer="pause", what="full soon", where="/data")
NO_SAVE = replace(PAUSE, savable=False)
ASKED: list[tuple[float, Event]] = [(1.0, StopAsked("SIGTERM")), (2.0, SignalSent(1, "stop_requested", ""))]
WORD = (3.0, TrainerStopped(1, 5))
KILLED = ((21.0, "SIGABRT"), (23.0, "SIGKILL"))
DOOM = (4.0, HangFound(1, 999.0, 900.0, "data"))
TRAINS = (6.0, Progress(1, 1, 2.0, 3.0, 4))


@pytest.mark.parametrize(
    ("events", "now_s", "action"),
    [
        ([], 0.0, actions.Wait(900.0 - rules.SUSPECT_S)),
        ([DOOM], 4.0, actions.KeepEvidence(1)),
        ([WORD, DOOM], 4.0, actions.KeepEvidence(1)),
        ([DOOM], 23.9, actions.KeepEvidence(1)),
        ([DOOM], 24.0, actions.Signal(1, "SIGABRT", "")),
        ([DOOM, (5.0, SignalSent(1, "SIGABRT", ""))], 24.0, actions.Signal(1, "SIGKILL", "")),
        ([DOOM, (23.0, SignalSent(1, "SIGABRT", ""))], 24.0, actions.Wait(25.0)),
        ([DOOM, (23.0, SignalSent(1, "SIGABRT", ""))], 25.0, actions.Signal(1, "SIGKILL", "")),
        ([DOOM, *((time_s, SignalSent(1, name, "")) for time_s, name in KILLED)], 52.9, actions.Wait(53.0)),
        ([DOOM, *((time_s, SignalSent(1, name, "")) for time_s, name in KILLED)], 53.0, actions.GiveUp(1)),
        ([WORD], 47.9, actions.Wait(48.0)),
        ([WORD], 48.0, actions.Signal(1, "SIGKILL", "")),
        ([WORD, (48.0, SignalSent(1, "SIGKILL", ""))], 77.9, actions.Wait(78.0)),
        ([WORD, (48.0, SignalSent(1, "SIGKILL", ""))], 78.0, actions.GiveUp(1)),
        ([*ASKED, WORD], 10.0, actions.Wait(48.0)),
        ([WORD, (9.0, PAUSE)], 10.0, actions.Wait(48.0)),
        ([(1.0, PAUSE)], 1.0, actions.Pause("", saves=True)),
        ([(1.0, NO_SAVE)], 1.0, actions.Pause("", saves=False)),
        ([(1.0, PAUSE), (1.0, NO_SAVE)], 1.0, actions.Pause("", saves=False)),
        ([(1.0, replace(PAUSE, answer="alert"))], 1.0, actions.Wait(900.0 - rules.SUSPECT_S)),
        ([(1.0, replace(NO_SAVE, answer="alert"))], 1.0, actions.Wait(900.0 - rules.SUSPECT_S)),
        ([(1.0, PAUSE), *ASKED], 3.0, actions.Wait(61.0)),
        ([(1.0, NO_SAVE), *ASKED], 3.0, actions.Pause("", saves=False)),
        ([(1.0, NO_SAVE), (1.0, StopAsked("full", saves=False))], 3.0, actions.Signal(1, "SIGKILL", "")),
        (
            [(1.0, StopAsked("full", saves=False)), (3.0, SignalSent(1, "SIGKILL", ""))],
            32.9,
            actions.Wait(33.0),
        ),
        ([(1.0, StopAsked("full", saves=False)), (3.0, SignalSent(1, "SIGKILL", ""))], 33.0, actions.GiveUp(1)),
        (ASKED[:1], 60.0, actions.AskStop(1, "")),
        (ASKED, 60.9, actions.Wait(61.0)),
        (ASKED, 61.0, actions.Signal(1, "SIGTERM", "")),
        ([*ASKED, (3.0, StopAsked("SIGINT"))], 3.0, actions.Signal(1, "SIGTERM", "")),
        ([*ASKED, (62.0, SignalSent(1, "SIGTERM", ""))], 66.9, actions.Wait(67.0)),
        ([*ASKED, (62.0, SignalSent(1, "SIGTERM", ""))], 67.0, actions.Signal(1, "SIGKILL", "")),
    ],
)
def test_the_most_urgent_comes_first(events: list[tuple[float, Event]], now_s: float, action: actions.Action) -> None:
    assert act(history(*BEGUN, *events), now_s) == action


TERM = (5.0, SignalSent(1, "SIGTERM", ""))
HASTE = (4.0, StopAsked("SIGINT"))


@pytest.mark.parametrize(
    ("events", "now_s", "action"),
    [
        (ASKED[:1], 1.0, actions.Signal(1, "SIGTERM", "", roots=True)),
        ([ASKED[0], TERM], 64.9, actions.Wait(65.0)),
        ([ASKED[0], TERM], 65.0, actions.Signal(1, "SIGKILL", "")),
        ([ASKED[0], HASTE, TERM], 9.9, actions.Wait(10.0)),
        ([ASKED[0], HASTE, TERM], 10.0, actions.Signal(1, "SIGKILL", "")),
    ],
)
def test_a_trainer_that_looks_for_no_file_gets_a_signal_and_its_grace(
    events: list[tuple[float, Event]], now_s: float, action: actions.Action
) -> None:
    assert act(history(*BEGUN, *events), now_s, replace(POLICY, stops_by_file=False)) == action


def test_haste_does_not_kill_before_the_signal_had_its_grace() -> None:
    state = history(*BEGUN, ASKED[0], TERM)
    assert act(state, 5.0, replace(POLICY, stops_by_file=False, stop_grace_s=1.0)) == actions.Wait(6.0)


def test_a_signal_to_the_workers_is_waited_for_like_one_to_the_launcher() -> None:
    policy = replace(POLICY, stops_by_file=False, stops_workers=True, stop_signal="SIGUSR1")
    asked = [(0.0, OPENED), *launched(), (5.0, StopAsked("SIGINT"))]
    assert decide(history(*asked), policy, 5.0) == actions.Signal(1, "SIGUSR1", "SIGINT", workers=True)
    asked.append((5.0, SignalSent(1, "SIGUSR1", "")))
    assert decide(history(*asked), policy, 6.0) == actions.Wait(5.0 + policy.stop_grace_s)


def test_a_trainer_that_saves_only_by_itself_is_ended_after_its_next_checkpoint() -> None:
    policy = replace(POLICY, stops_by_file=False, stops_after_save=True)
    until_s = 5.0 + policy.stop_grace_s
    asked = [(0.0, OPENED), *launched(), (1.0, CheckpointSaved(1, 10, 1, 0.0, 0.0)), (5.0, StopAsked("SIGINT"))]
    assert decide(history(*asked), policy, 6.0) == actions.Wait(until_s)
    assert isinstance(decide(history(*asked), policy, until_s), actions.Signal)
    saved = (9.0, CheckpointSaved(1, 20, 1, 0.0, 0.0))
    assert decide(history(*asked, saved), policy, 9.0) == actions.Signal(1, "SIGTERM", "SIGINT", roots=True)
    again = (15.0, StopAsked("SIGINT"))
    assert isinstance(decide(history(*asked, again), policy, 15.0), actions.Signal)


def test_a_trainer_that_looks_for_the_file_gets_no_signal() -> None:
    policy = replace(POLICY, stops_by_file=False)
    asked = [(0.0, OPENED), *launched(), (1.0, StopListened(1)), (5.0, StopAsked("SIGINT"))]
    assert decide(history(*asked), policy, 5.0) == actions.AskStop(1, "SIGINT")


def test_an_endless_run_is_over_when_its_trainer_has_finished() -> None:
    opened = replace(OPENED, max_steps=ENDLESS_STEPS)
    over = AttemptEnded(1, 0, "finished", "", "exit 0; not known", "", "", "", 0)
    assert decide(history((0.0, opened), *launched(), (9.0, over)), POLICY, 9.0) == actions.Close(
        "finished", ExitCode.OK, "exit 0; not known"
    )


def test_the_last_step_may_be_known_by_the_trainer_alone() -> None:
    opened = replace(OPENED, max_steps=ENDLESS_STEPS)
    state = history((0.0, opened), *launched(), (1.0, Progress(1, 3, None, None, 0, total=60)))
    assert state.progress_text == "step 3 of 60"


PAIR = ("inference", "trainer")


def pair(*started: str, services: tuple[str, ...] = PAIR[:1]) -> list[tuple[float, Event]]:
    children = [(0.0, ChildStarted(1, role, 10, 1, "log")) for role in started]
    return [(0.0, OPENED), (0.0, LaunchAsked(1, 0, (), PAIR, services)), *children]


READY = (5.0, ServiceReady(1, "inference", "url", 1.0))


@pytest.mark.parametrize(
    ("events", "policy", "now_s", "action"),
    [
        (pair(), POLICY, 1.0, actions.StartRole(1, "inference")),
        (pair("inference"), POLICY, 1.0, actions.Wait(61.0)),
        (pair("inference"), POLICY, 5000.0, actions.Wait(5060.0)),
        ([*pair("inference"), READY], POLICY, 6.0, actions.StartRole(1, "trainer")),
        ([*pair("inference"), READY, (5.0, PAUSE)], POLICY, 6.0, actions.Pause("", saves=True)),
        ([*pair("inference"), READY, ASKED[0]], POLICY, 6.0, actions.Signal(1, "SIGTERM", "", roots=True)),
        ([*pair("inference"), ASKED[0], TERM], POLICY, 9.9, actions.Wait(10.0)),
        ([*pair("inference"), ASKED[0], TERM], POLICY, 10.0, actions.Signal(1, "SIGKILL", "")),
        ([*pair(*PAIR), READY], POLICY, 6.0, actions.Wait(905.0 - rules.SUSPECT_S)),
        ([*pair(*PAIR), READY], replace(POLICY, ends_hangs=False), 5000.0, actions.Wait(5060.0)),
        (pair(*PAIR, services=PAIR), POLICY, 5000.0, actions.Wait(5060.0)),
    ],
)
def test_roles_start_in_order_and_servers_are_not_judged_by_silence(
    events: list[tuple[float, Event]], policy: Policy, now_s: float, action: actions.Action
) -> None:
    assert act(history(*events), now_s, policy) == action


@pytest.mark.parametrize(
    ("excused_until_s", "deadline_s"), [(0.0, 306.0), (305.9, 306.0), (306.0, 306.0), (400.0, 400.0)]
)
def test_silence_is_suspect_before_its_deadline_and_a_hang_at_it(excused_until_s: float, deadline_s: float) -> None:
    state = history(*BEGUN, TRAINS, (7.0, ActivitySeen(1, "busy", excused_until_s)))
    suspect_s = deadline_s - rules.SUSPECT_S
    assert act(state, suspect_s - 0.1) == actions.Wait(suspect_s)
    assert act(state, suspect_s) == actions.Suspect(1, deadline_s)
    assert act(state, deadline_s - 0.1) == actions.Suspect(1, deadline_s)
    until_s = min(deadline_s + STEP_LIMIT_S / 2, 6.0 + 3 * STEP_LIMIT_S)
    assert act(state, deadline_s) == actions.FindHang(1, deadline_s - 6.0, STEP_LIMIT_S, "train", until_s)


@pytest.mark.parametrize(
    ("changed", "limit_s"),
    [
        ({}, STEP_LIMIT_S),
        ({"step_limit_s": None, "startup_limit_s": 500.0}, 500.0),
        ({"step_limit_s": 77.0}, 77.0),
    ],
)
def test_the_limit_of_a_phase_is_that_of_the_policy(changed: dict[str, Any], limit_s: float) -> None:
    state = history(*BEGUN, TRAINS)
    assert state.live is not None
    assert rules.find_silence_limit_s(state, state.live, replace(POLICY, **changed)) == limit_s
    evaluates = replace(state.live, phase="evaluate")
    assert rules.find_silence_limit_s(state, evaluates, replace(POLICY, slow_phase_limit_s=5.0)) == 5.0


def test_a_trainer_that_reports_nothing_yet_has_longer() -> None:
    state = history(*BEGUN)
    assert state.live is not None
    assert rules.find_silence_limit_s(state, state.live, POLICY) == POLICY.startup_limit_s
    assert rules.find_silence_limit_s(state, state.live, replace(POLICY, reports=False)) == silence_limits.CEILING_S


# --- random worlds ----------------------------------------------------------------------------------

NEVER_RETRIED = ("config", "auth", "bug", "disk", "env")
BEHAVIOURS = (
    *("crash", "save and crash", "oom", "hang", "deaf", "linger", "finish", "stop", "killed", "served"),
    *("gpu lost", "disk fills", "disk_no_room", "slow", "lost before its start", "full before its start", "unkillable"),
    *NEVER_RETRIED,
)


@dataclass
class World:
    """A supervisor's loop without processes: the trainer of attempt n behaves like the n-th entry of `script`."""

    script: list[str]
    stop_at_s: float | None
    policy: Policy
    now_s: float = 0.0
    state: State = field(default_factory=State)
    seq: int = 0
    saved: int = 0
    launches: int = 0
    live: bool = False
    closed: list[actions.Close] = field(default_factory=list)
    spoken: list[Record] = field(default_factory=list)

    def report(self, event: Event, writer: str = "supervisor") -> None:
        record = Record(self.now_s, writer, self.seq, event)
        self.seq += 1
        self.spoken.append(record)
        self.state = fold(self.state, record)

    def behaviour(self) -> str:
        return self.script[self.launches - 1] if self.launches <= len(self.script) else "crash"

    def end(self, outcome: str = "failed", cause_class: str = "unknown") -> None:
        self.live = False
        self.report(AttemptEnded(self.launches, 1, outcome, cause_class, "boom", "", "", "", self.saved))

    def trains(self) -> None:
        """What the trainer does once it is started, all at once."""
        writer, behaviour = f"trainer-{self.launches}", self.behaviour()
        self.report(Progress(self.launches, self.saved + 1, 1.0, 1.0, 1), writer)
        match behaviour:
            case "hang" | "deaf" | "unkillable":
                return
            case "gpu lost" | "disk fills" | "disk_no_room" | "slow":
                answer = {"gpu lost": "restart", "slow": "alert"}.get(behaviour, "pause")
                where = ("GPU 1", answer, "hardware", "it is lost", "", "", "GPU-1", 3)
                self.report(AlarmRaised(self.launches, "gpu", behaviour, *where))
                return
            case "save and crash":
                self.saved += 10
            case "finish":
                self.report(TrainerFinished(self.launches, 300, 1.0, "x"), writer)
                self.end("finished", "")
                return
            case "stop":
                self.report(TrainerStopped(self.launches, 5), writer)
                self.end("stopped", "")
                return
            case "linger":
                self.report(TrainerFailed(self.launches, 0, "unknown", "x", "", "", ""), writer)
                return
        self.end(cause_class=behaviour if behaviour in (*NEVER_RETRIED, "oom") else "unknown")

    def act(self, action: actions.Action) -> None:
        match action:
            case actions.PlanLaunch(attempt=attempt):
                assert not self.live, "two live attempts"
                self.launches += 1
                assert attempt == self.launches
                self.live = True
                roles = ("trainer",) if self.behaviour() != "served" else ("inference", "trainer")
                self.report(LaunchAsked(attempt, self.saved, (), roles, roles[:-1]))
                answer = {"lost before its start": "restart", "full before its start": "pause"}.get(self.behaviour())
                if answer is not None:
                    self.report(AlarmRaised(attempt, "gpu", "x", "GPU 1", answer, "hardware", "", "", "", "GPU-1", 3))
            case actions.StartRole(attempt=attempt, role=role):
                assert self.live
                self.report(ChildStarted(attempt, role, attempt, 1, "log"))
                if role == "inference":
                    assert not isinstance(decide(self.state, self.policy, self.now_s), actions.StartRole)
                    self.report(ServiceReady(attempt, role, "http://127.0.0.1", 1.0))
                else:
                    self.trains()
            case actions.Wait(until_s=until_s):
                assert until_s > self.now_s, "a wait that is over"
                self.now_s = until_s if self.stop_at_s is None else min(until_s, max(self.now_s, self.stop_at_s))
                if self.stop_at_s is not None and self.now_s >= self.stop_at_s:
                    self.stop_at_s = None
                    self.report(StopAsked("SIGTERM"))
            case actions.Suspect(until_s=until_s):
                self.act(actions.Wait(until_s))
            case actions.AskStop(attempt=attempt):
                self.report(SignalSent(attempt, "stop_requested", ""))
                if self.behaviour() in ("hang", "disk fills", "slow"):  # hangs by the clock, yet hears a request
                    self.report(TrainerStopped(attempt, 5), f"trainer-{attempt}")
                    self.end("stopped", "")
            case actions.FindHang(attempt=attempt, silent_s=silent_s, limit_s=limit_s, phase=phase):
                self.report(HangFound(attempt, silent_s, limit_s, phase))
            case actions.Signal(attempt=attempt, signal=name):
                self.report(SignalSent(attempt, name, ""))
                if self.behaviour() != "unkillable" and (name == "SIGKILL" or self.behaviour() != "deaf"):
                    self.end("stopped" if self.state.stop_requested_s is not None else "failed", "hang")
            case actions.GiveUp():
                stays = self.behaviour() == "unkillable"
                self.end(
                    "stopped" if self.state.stop_requested_s and not stays else "failed", "env" if stays else "hardware"
                )
            case actions.KeepEvidence(attempt=attempt):
                self.report(EvidenceKept(attempt, "", ()))
            case actions.Pause(reason=reason, saves=saves):
                self.report(StopAsked(reason, saves))
            case actions.Shrink(attempt=attempt, micro_batch=micro_batch):
                assert self.state.micro_batch is None or micro_batch < self.state.micro_batch
                self.report(BatchShrunk(attempt, micro_batch))
            case actions.LeaveOut(gpu=gpu, reason=reason):
                assert gpu not in self.state.left_out
                self.report(GpuLeftOut(gpu, reason))
            case actions.Close() as close:
                self.closed.append(close)
                self.report(RunClosed(close.state, int(close.exit_code), close.reason))

    def run(self) -> Iterator[actions.Action]:
        self.report(OPENED)
        for _ in range(40 * (len(self.script) + 10)):
            if self.state.closed:
                return
            action = decide(self.state, self.policy, self.now_s)
            yield action
            self.act(action)
        raise AssertionError("it does not come to an end")


worlds = st.builds(
    World,
    script=st.lists(st.sampled_from(BEHAVIOURS), max_size=12),
    stop_at_s=st.none() | st.floats(0, 5000),
    policy=st.builds(
        Policy,
        max_fruitless_attempts=st.integers(1, 4),
        backoff_s=st.floats(0, 10),
        backoff_max_s=st.floats(0, 100),
        startup_limit_s=st.floats(1, 1000),
        step_limit_s=st.floats(1, 1000),
        stop_grace_s=st.floats(1, 100),
        micro_batches=st.sampled_from([(), (4, 2, 1)]),
        stops_by_file=st.booleans(),
    ),
)


@given(worlds)
@settings(max_examples=400)
def test_every_world_comes_to_its_end_within_the_budget(world: World) -> None:
    list(world.run())
    (close,) = world.closed
    fruitful = sum(behaviour == "save and crash" for behaviour in world.script)
    shrinks = sum(isinstance(record.event, BatchShrunk) for record in world.spoken)
    assert world.launches <= (fruitful + 1) * world.policy.max_fruitless_attempts + shrinks
    assert shrinks <= len(world.policy.micro_batches)
    behaviours = [*world.script, *["crash"] * world.launches][: world.launches]
    assert not any(behaviour in (*NEVER_RETRIED, "unkillable") for behaviour in behaviours[:-1]), (
        "a config-class failure was retried"
    )
    assert all(behaviour not in ("finish", "stop") for behaviour in behaviours[:-1])
    assert (close.state == "finished") == (bool(behaviours) and behaviours[-1] == "finish")
    assert (close.exit_code == ExitCode.RESUMABLE) == (close.state == "stopped")
    assert decide(world.state, world.policy, world.now_s + 1e6) == actions.Nothing()


@given(worlds, st.data())
@settings(max_examples=200)
def test_a_supervisor_that_dies_at_any_record_is_followed_by_one_that_ends_the_run(
    world: World, data: st.DataObject
) -> None:
    list(world.run())
    cut = data.draw(st.integers(0, len(world.spoken)))
    state = fold_all(world.spoken[:cut])
    if state.closed:
        return
    follower = replace(world, state=state, closed=[], stop_at_s=None, live=False, launches=state.attempt_number)
    if state.live is not None:  # what the next supervisor does with what it finds
        follower.report(AttemptEnded(state.attempt_number, None, "failed", "signal", "", "", "", "", follower.saved))
    list(follower.run())
    assert len(follower.closed) == 1


# --- a machine that goes away ----------------------------------------------------------------------

GOES_S = 1000.0
GOES = AlarmRaised(
    *(1, "preemption", "preempted", "this machine", "leave", "signal", "AWS takes it away", "w", "f", "", 5, GOES_S)
)
LAST_S = GOES_S - POLICY.leave_margin_s
AWAY: list[tuple[float, Event]] = [(0.0, OPENED), *launched()]


def saved(at_s: float, write_s: float, step: int = 10) -> list[tuple[float, Event]]:
    return [(at_s - write_s, CheckpointStarted(1, step)), (at_s, CheckpointSaved(1, step, 1, 0.0, write_s))]


def leaving(now_s: float, *events: tuple[float, Event]) -> actions.Action:
    return decide(history(*AWAY, *events, (now_s, GOES)), POLICY, now_s)


def test_a_notice_stops_the_run_with_a_save_if_the_time_allows() -> None:
    assert leaving(900.0) == actions.Pause("AWS takes it away", saves=True)
    assert leaving(900.0, *saved(100.0, 70.0)) == actions.Pause("AWS takes it away", saves=True)


def test_a_save_that_takes_longer_than_is_left_is_not_begun() -> None:
    action = leaving(900.0, *saved(100.0, 80.0), *saved(200.0, 10.0))
    assert action == actions.Pause("AWS takes it away; a save takes 96 s and 95 s are left", saves=False)
    assert leaving(898.9, *saved(100.0, 80.0)) == actions.Pause("AWS takes it away", saves=True)


def test_the_rest_of_a_step_is_part_of_a_save() -> None:
    steps: list[tuple[float, Event]] = [(100.0 + 40.0 * n, Progress(1, n, 1.0, 1.0, n)) for n in range(1, 14)]
    state = history(*AWAY, *saved(50.0, 30.0), *steps)
    assert rules.estimate_save_s(state) == rules.SAVE_FACTOR * 30.0 + 40.0


def test_only_the_latest_saves_are_measured() -> None:
    slow, fast = saved(100.0, 80.0), [event for n in range(5) for event in saved(110.0 + n, 0.5)]
    assert rules.estimate_save_s(history(*AWAY, *slow, *fast)) == rules.SAVE_FACTOR * 0.5


def test_a_save_that_has_begun_may_end() -> None:
    begun = (890.0, CheckpointStarted(1, 20))
    assert leaving(900.0, *saved(100.0, 500.0), begun) == actions.Pause("AWS takes it away", saves=True)


def test_the_save_has_the_time_until_the_machine_goes_and_no_more() -> None:
    events = [*AWAY, (900.0, GOES), (900.0, StopAsked("AWS takes it away"))]
    assert decide(history(*events), POLICY, 900.0) == actions.AskStop(1, "AWS takes it away")
    events.append((900.0, SignalSent(1, "stop_requested", "AWS takes it away")))
    assert decide(history(*events), POLICY, LAST_S - 0.1) == actions.Wait(LAST_S)  # longer than stop_grace_s
    late = actions.Pause("AWS takes it away; no time is left to save", saves=False)
    assert decide(history(*events), POLICY, LAST_S) == late
    events.append((LAST_S, StopAsked(late.reason, saves=False)))
    action = decide(history(*events), POLICY, LAST_S)
    assert action == actions.Signal(1, "SIGKILL", late.reason)


def test_a_program_that_gets_sigterm_is_killed_at_the_last_moment() -> None:
    policy = replace(POLICY, stops_by_file=False, stop_grace_s=500.0)
    sent = (900.0, SignalSent(1, "SIGTERM", "AWS takes it away"))
    events = [*AWAY, (900.0, GOES), (900.0, StopAsked("AWS takes it away")), sent]
    assert isinstance(decide(history(*events), policy, LAST_S - 1), actions.Wait)
    assert isinstance(decide(history(*events), policy, LAST_S), actions.Pause)


def test_no_attempt_begins_on_a_machine_that_goes_away() -> None:
    events = [*AWAY, ended(1, 880.0, newest=10), (900.0, replace(GOES, attempt=0))]
    for now_s in (900.0, GOES_S + 1):
        assert decide(history(*events), POLICY, now_s) == actions.Pause("AWS takes it away", saves=True)
    closing = decide(history(*events, (900.0, StopAsked("AWS takes it away"))), POLICY, 901.0)
    assert isinstance(closing, actions.Close)
    assert (closing.state, closing.exit_code) == ("stopped", ExitCode.RESUMABLE)
    before: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (1.0, replace(GOES, attempt=0)),
        (1.0, StopAsked("AWS takes it away")),
    ]
    assert isinstance(decide(history(*before), POLICY, 2.0), actions.Close)


def test_a_run_that_finished_is_not_paused() -> None:
    done = AttemptEnded(1, 0, "finished", "", "", "", "", "", 300)
    events = [*AWAY, (900.0, GOES), (901.0, StopAsked("AWS takes it away")), (902.0, done)]
    closing = decide(history(*events), POLICY, 903.0)
    assert isinstance(closing, actions.Close)
    assert closing.exit_code == ExitCode.OK


def test_the_alarm_outlives_the_attempt_and_moves_with_the_clock() -> None:
    state = history(*AWAY, (900.0, GOES), ended(1, 905.0))
    assert state.leaves_s == GOES_S
    assert history(*AWAY, (900.0, GOES), (4501.0, ClockJumped(3600.0))).leaves_s == GOES_S + 3600.0
    cleared = AlarmCleared(1, "preemption", "preempted", "this machine")
    assert history(*AWAY, (900.0, GOES), (901.0, cleared)).leaves_s is None


@given(
    st.lists(st.floats(0.0, 400.0), max_size=4),
    st.floats(500.0, 1100.0),
    st.sampled_from([None, 880.0]),
    st.booleans(),
)
def test_a_run_always_leaves_before_its_machine(
    saves: list[float], noticed_s: float, begun_s: float | None, obeys: bool
) -> None:
    """Every action is done at once; an obedient trainer ends 1 s after the request, another one only by SIGKILL."""
    events: list[tuple[float, Event]] = [*AWAY]
    for write_s in saves:
        events += saved(450.0, write_s)
    if begun_s is not None and begun_s < noticed_s:
        events.append((begun_s, CheckpointStarted(1, 20)))
    events.append((noticed_s, GOES))
    now_s = noticed_s
    for _ in range(40):
        match decide(history(*events), POLICY, now_s):
            case actions.Pause(reason=reason, saves=with_save):
                events.append((now_s, StopAsked(reason, with_save)))
            case actions.AskStop(reason=reason):
                events.append((now_s, SignalSent(1, "stop_requested", reason)))
                if obeys:
                    now_s += 1.0
                    events.append((now_s, AttemptEnded(1, 0, "stopped", "", "", "", "", "", 20)))
            case actions.Signal(signal=name, reason=reason):
                events.append((now_s, SignalSent(1, name, reason)))
                if name == "SIGKILL":
                    events.append((now_s, AttemptEnded(1, -9, "stopped", "", "", "", "", "", 10)))
            case actions.Wait(until_s=until_s):
                now_s = max(now_s, until_s)
            case actions.Close(state=end, exit_code=code):
                assert (end, code) == ("stopped", ExitCode.RESUMABLE)
                assert now_s <= max(noticed_s, LAST_S) + 1.0
                return
            case other:
                raise AssertionError(other)
    raise AssertionError("it did not end")
