from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
    Evaluated,
    Event,
    EvidenceKept,
    GpuLeftOut,
    HangFound,
    LaunchAsked,
    Measured,
    Phase,
    Progress,
    Record,
    RolloutsFailed,
    RunClosed,
    RunOpened,
    Sampled,
    ServiceReady,
    SettingsApplied,
    SignalSent,
    StopAsked,
    TasksEvaluated,
    TrainerFailed,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
    Unrecognised,
)
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.core.fold import SAMPLES_KEPT, fold, fold_all
from prime_train.supervise.core.fold_supervisor import ATTEMPTS_KEPT, SAME_WISH_S, SERVED_S, rewind
from prime_train.supervise.core.state import (
    STOP_COMMAND,
    ActiveAlarm,
    AttemptState,
    ChildProcess,
    Live,
    PendingKill,
    ReadPosition,
    Sent,
    State,
    TaskScore,
    TrainerExit,
    Validation,
)
from tests.system.events.test_log import any_event

SUPERVISOR = "supervisor"
OPENED = RunOpened("r", 1, 300, "0.1")


def folded(*events: Event, writer: str = "", state: State | None = None) -> State:
    """The state after these events, one second apart, each from the writer whose business it is."""
    state = State() if state is None else state
    first = max((mark.seq for mark in state.read), default=-1) + 1
    for seq, event in enumerate(events, first):
        own = writer or (SUPERVISOR if isinstance(event, _SUPERVISORS) else f"trainer-{getattr(event, 'attempt', 0)}")
        state = fold(state, Record(float(seq), own, seq, event))
    return state


_SUPERVISORS = RunOpened | LaunchAsked | ChildStarted | SignalSent | AttemptEnded | StopAsked | RunClosed


def failed(attempt: int, newest: int = 0) -> AttemptEnded:
    return AttemptEnded(attempt, -9, "failed", "signal", "killed by signal 9 (SIGKILL)", "why", "fix", "log", newest)


def progress(attempt: int, step: int) -> Progress:
    return Progress(attempt, step, 10.0 / step, 500.0, step * 64)


def test_a_run_from_its_opening_to_its_end() -> None:
    state = folded(OPENED)
    assert (state.run, state.max_steps, state.state, state.closed) == ("r", 300, "starting", False)
    state = folded(LaunchAsked(1, 0), ChildStarted(1, "trainer", 77, 5, "log"), state=state)
    assert state.live is not None
    assert state.live.children == (ChildProcess("trainer", 77, 5, "log"),)
    started = TrainerStarted(1, 78, 0, 1, "cpu", "fp32", 1000, 4096, 0)
    state = folded(started, Phase(1, "data", "packing"), state=state)
    assert state.started == started
    assert state.live is not None
    assert (state.live.phase, state.live.phase_detail, state.state) == ("data", "packing", "starting")
    state = folded(progress(1, 10), Evaluated(1, 10, 5.0, 64), CheckpointStarted(1, 10), state=state)
    assert (state.state, state.step, state.loss, state.saving_step) == ("running", 10, 1.0, 10)
    state = folded(CheckpointSaved(1, 10, 1, 0.0, 0.0), progress(1, 20), Evaluated(1, 20, 4.0, 64), state=state)
    assert (state.newest_complete, state.saving_step) == (10, None)
    assert (state.first_validation, state.last_validation) == (Validation(10, 5.0, 64), Validation(20, 4.0, 64))
    state = folded(
        TrainerFinished(1, 20, 0.5, "final"), AttemptEnded(1, 0, "finished", "", "", "", "", "", 20), state=state
    )
    assert state.live is None
    state = folded(RunClosed("finished", 0, "step 20 of 20"), state=state)
    assert (state.state, state.exit_code, state.final, state.restarts) == ("finished", 0, "final", 0)
    assert state.attempt is not None
    assert (state.attempt.outcome, state.attempt.last_step, state.attempt.number) == ("finished", 20, 1)


def test_a_restart_keeps_its_cause_and_stands_where_it_resumed() -> None:
    state = folded(OPENED, LaunchAsked(1, 0), progress(1, 15), failed(1, 10))
    assert (state.state, state.step, state.live) == ("recovering", 15, None)
    state = folded(LaunchAsked(2, 10, ("step_15: no COMPLETE.json",)), state=state)
    assert (state.step, state.restarts, state.rejected) == (10, 1, ("step_15: no COMPLETE.json",))
    assert state.attempts[0].what == "killed by signal 9 (SIGKILL)"
    assert state.state == "recovering"
    assert folded(progress(2, 11), state=state).state == "running"


def test_going_on_after_a_stop_is_no_restart() -> None:
    stopped = AttemptEnded(1, 0, "stopped", "", "", "", "", "", 10)
    state = folded(OPENED, LaunchAsked(1, 0), StopAsked("SIGINT"), TrainerStopped(1, 10), stopped)
    state = folded(RunClosed("stopped", 75, "x"), OPENED, LaunchAsked(2, 10), state=state)
    assert (state.restarts, state.closed, state.stop_requested_s) == (0, False, None)


def test_the_first_failure_in_time_is_the_cause() -> None:
    first = TrainerFailed(1, 3, "bug", "ZeroDivisionError", "", "", "x.py:1")
    echo = TrainerFailed(1, 0, "unknown", "connection closed by peer", "", "", "")
    state = folded(OPENED, LaunchAsked(1, 0), first, echo)
    assert state.live is not None
    assert state.live.failure == first


def test_a_lost_machine_is_the_cause_of_the_connection_that_its_peer_lost() -> None:
    echo = TrainerFailed(1, 0, "unknown", "connection closed by peer", "", "", "")
    lost = TrainerFailed(1, 8, "hardware", "machine 1 (10.0.0.2) was lost", "", "", "")
    later = TrainerFailed(1, 16, "hardware", "machine 2 (10.0.0.3) was lost", "", "", "")
    state = folded(OPENED, LaunchAsked(1, 0), echo, lost, later)
    assert state.live is not None
    assert state.live.failure == lost
    assert state.live.trainer_exit is not None


def test_a_checkpoint_that_cannot_be_loaded_is_remembered_until_it_is_written_again() -> None:
    state = folded(OPENED, LaunchAsked(1, 40), CheckpointUnreadable(1, 40, "bad"), failed(1, 20))
    assert state.unreadable == (40,)
    state = folded(LaunchAsked(2, 20), CheckpointSaved(2, 40, 1, 0.0, 0.0), state=state)
    assert state.unreadable == ()


def test_another_supervisor_tries_every_checkpoint_again() -> None:
    state = folded(OPENED, LaunchAsked(1, 40), CheckpointUnreadable(1, 40, "bad"), failed(1, 20), OPENED)
    assert state.unreadable == ()


def test_a_start_from_the_beginning_forgets_what_was_measured_and_a_resume_does_not() -> None:
    measured = folded(OPENED, LaunchAsked(1, 0), Evaluated(1, 10, 5.0, 64), Sampled(1, 10, "a", "b"), failed(1))
    resumed = folded(LaunchAsked(2, 10), state=measured)
    assert resumed.last_validation == resumed.first_validation == Validation(10, 5.0, 64)
    again = folded(LaunchAsked(2, 0), state=measured)
    assert (again.first_validation, again.last_validation, again.samples) == (None, None, ())


def test_samples_are_those_of_the_latest_step() -> None:
    early, late = Sampled(1, 10, "a", "b"), (Sampled(1, 20, "a", "c"), Sampled(1, 20, "d", "e"))
    assert folded(OPENED, LaunchAsked(1, 0), early, *late).samples == late


def test_an_earlier_attempt_is_not_heard() -> None:
    state = folded(OPENED, LaunchAsked(1, 0), progress(1, 15), failed(1), LaunchAsked(2, 0))
    late = folded(progress(1, 16), TrainerFinished(1, 300, 1.0, "x"), state=state)
    assert replace(late, read=()) == replace(state, read=())


def test_the_state_grows_neither_by_steps_nor_without_end_by_attempts() -> None:
    state = folded(OPENED, LaunchAsked(1, 0))
    short = len(repr(folded(progress(1, 1), state=state)))
    state = folded(*(progress(1, step) for step in range(1, 2000)), state=state)
    assert len(repr(state)) < short + 200
    for attempt in range(1, ATTEMPTS_KEPT + 50):
        state = folded(failed(attempt), LaunchAsked(attempt + 1, 0), progress(attempt + 1, 1), state=state)
    assert len(state.attempts) == ATTEMPTS_KEPT
    assert state.attempt_number == ATTEMPTS_KEPT + 50
    assert len(state.read) <= 2
    state = folded(*(Sampled(state.attempt_number, 5, "a", str(n)) for n in range(100)), state=state)
    assert len(state.samples) == SAMPLES_KEPT


# --- what each event changes -------------------------------------------------------------------------

_ROLES = ("inference", "judge", "trainer")
_ALARM = AlarmRaised(1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "it is lost", "why", "fix", "GPU-1", 3)
_DISK = replace(_ALARM, watch="disk", name="disk_fills", subject="/data", answer="pause", where="/data")
_NOTE = replace(_ALARM, watch="host", name="clock_back", subject="this machine", answer="note", where="")
_ALERT = replace(_NOTE, name="memory_low", answer="alert")
_HANG = HangFound(1, 999.0, 900.0, "train")
_LAUNCHED = LaunchAsked(1, 0)
_SERVICES = LaunchAsked(1, 0, (), _ROLES, _ROLES[:2])
_SERVER = LaunchAsked(1, 0, (), ("inference",), ("inference",))
_FAILED = TrainerFailed(1, 0, "bug", "x", "", "", "x.py:1")
_WORDS = ("read", "last_event", "last_event_s", "learned")


def at(time_s: float, event: Event, state: State, writer: str = "") -> State:
    """The state after one more event at this time."""
    own = writer or (SUPERVISOR if isinstance(event, _SUPERVISORS) else f"trainer-{getattr(event, 'attempt', 0)}")
    seq = max((mark.seq for mark in state.read), default=-1) + 1
    return fold(state, Record(time_s, own, seq, event))


def after(*events: Event, state: State | None = None) -> State:
    """The state after an opening and these events, at seconds 1, 2, 3 ..."""
    state = at(1.0, OPENED, State()) if state is None else state
    for time_s, event in enumerate(events, 2):
        state = at(float(time_s), event, state)
    return state


def fields_of(state: State) -> dict[str, object]:
    plain = {name: getattr(state, name) for name in vars(State()) if name not in (*_WORDS, "live", "attempts")}
    if state.live is not None:
        plain |= {f"live.{name}": getattr(state.live, name) for name in vars(state.live)}
    if state.attempt is not None:
        plain |= {f"attempt.{name}": getattr(state.attempt, name) for name in vars(state.attempt)}
    return plain


def changes(event: Event, state: State, time_s: float = 50.0) -> dict[str, object]:
    """The fields that have another value after this event, and their values."""
    before, now = fields_of(state), fields_of(at(time_s, event, state))
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def test_an_opening_fills_the_budget_again_and_keeps_what_was_reached() -> None:
    first = changes(OPENED, State(), 7.0)
    assert first == {"run": "r", "max_steps": 300, "opened_s": 7.0, "first_opened_s": 7.0, "supervisor_pid": 1}
    worn = replace(
        State(run="old", max_steps=5, state="failed", opened_s=2.0, first_opened_s=1.0, supervisor_pid=9),
        launched=True,
        fruitless=2,
        best_complete=7,
        newest_complete=7,
        unreadable=(3,),
        stop_requested_s=4.0,
        stop_by="SIGINT",
        stop_saves=False,
        stop_at_once=True,
        alarms=(ActiveAlarm(_NOTE, 3.0),),
        exit_code=5,
        reason="x",
        restarts=4,
        step=8,
        micro_batch=2,
    )
    assert changes(OPENED, worn, 7.0) == {
        "run": "r",
        "max_steps": 300,
        "state": "starting",
        "opened_s": 7.0,
        "supervisor_pid": 1,
        "launched": False,
        "fruitless": 0,
        "best_complete": 0,
        "unreadable": (),
        "stop_requested_s": None,
        "stop_by": "",
        "alarms": (),
        "stop_saves": True,
        "stop_at_once": False,
        "exit_code": None,
        "reason": "",
    }


def test_a_launch_makes_a_live_attempt_that_stands_where_it_resumes() -> None:
    worn = replace(State(), saving_step=5, tokens_per_s=3.0, newest_complete=40, best_complete=30, step=45)
    asked = LaunchAsked(3, 20, ("step_40: torn",), _ROLES, _ROLES[:2])
    state = at(9.0, asked, worn)
    assert state.attempts == (AttemptState(3, 20, ("step_40: torn",), launched_s=9.0, last_step=20),)
    assert state.live == Live(3, 9.0, _ROLES, _ROLES[:2])
    found = {name: value for name, value in changes(asked, worn, 9.0).items() if "." not in name}
    expected = {"launched": True, "newest_complete": 20, "rejected": ("step_40: torn",), "saving_step": None}
    assert found == expected | {"tokens_per_s": None, "step": 20}
    assert at(9.0, LaunchAsked(3, 31), worn).best_complete == 31


@pytest.mark.parametrize("number", [1, 2])
def test_a_launch_of_an_attempt_that_is_known_changes_nothing(number: int) -> None:
    state = after(_LAUNCHED, failed(1), LaunchAsked(2, 0))
    assert changes(LaunchAsked(number, 30), state) == {}


def test_a_launch_beside_a_live_attempt_ends_that_one_as_failed() -> None:
    state = at(9.0, LaunchAsked(2, 0), after(_LAUNCHED))
    lost = state.attempts[0]
    assert (lost.ended_s, lost.outcome, lost.cause_class, bool(lost.what)) == (9.0, "failed", "unknown", True)
    assert (state.restarts, state.attempt_number, len(state.attempts)) == (1, 2, 2)


def test_restarts_count_launches_after_failures() -> None:
    stopped = replace(failed(2), outcome="stopped")
    state = after(_LAUNCHED, failed(1), LaunchAsked(2, 0), stopped, LaunchAsked(3, 0), failed(3), LaunchAsked(4, 0))
    assert state.restarts == 2


def test_a_start_drops_what_was_measured_after_its_checkpoint() -> None:
    state = after(_LAUNCHED, Evaluated(1, 10, 5.0, 64), Sampled(1, 10, "a", "b"), failed(1))
    state = replace(state, task_scores=(TaskScore("sums", 10, 0.25, 10, 0.25),))
    assert after(LaunchAsked(2, 10), state=state).samples == state.samples
    assert after(LaunchAsked(2, 10), state=state).task_scores == state.task_scores
    assert after(LaunchAsked(2, 9), state=state).task_scores == ()
    assert after(LaunchAsked(2, 9), state=state).last_validation is None
    assert after(LaunchAsked(2, 0), state=state).samples == ()
    assert after(LaunchAsked(2, 0), state=state).task_scores == ()


def test_a_child_starts_the_attempt_at_its_first_and_counts_as_a_sign() -> None:
    child = ChildStarted(1, "trainer", 77, 5, "log")
    first = {
        "attempt.started_s": 50.0,
        "live.children": (ChildProcess("trainer", 77, 5, "log"),),
        "live.last_sign_s": 50.0,
    }
    assert changes(child, after(_LAUNCHED)) == first
    again = changes(child, after(_LAUNCHED, child))
    assert again == {"live.children": (ChildProcess("trainer", 77, 5, "log"),) * 2, "live.last_sign_s": 50.0}


@pytest.mark.parametrize(
    "event",
    [
        ChildStarted(2, "trainer", 77, 5, "log"),
        replace(_HANG, attempt=2),
        SignalSent(2, "SIGTERM", ""),
        failed(2),
        ServiceReady(2, "inference", "url", 1.0),
        ActivitySeen(2, "busy", 90.0),
        EvidenceKept(2, "folder", ()),
        EvidenceKept(1, "folder", ()),  # nothing is to be ended
        progress(2, 5),
        TrainerStarted(1, 78, 1, 2, "cpu", "fp32", 1000, 4096, 0),  # of another rank; a sign of life all the same
        Unrecognised("moved"),
    ],
)
def test_an_event_that_is_not_about_the_live_attempt_changes_at_most_its_sign_of_life(event: Event) -> None:
    state = after(_SERVICES)
    assert changes(event, state) in ({}, {"live.last_sign_s": 50.0})
    assert changes(event, after()) == {}


def test_the_first_fault_dooms_an_attempt() -> None:
    doomed = after(_LAUNCHED, _HANG)
    assert changes(_HANG, after(_LAUNCHED)) == {"live.pending_kill": PendingKill(_HANG, 50.0)}
    assert changes(replace(_HANG, silent_s=5.0), doomed) == {}
    assert changes(EvidenceKept(1, "folder", ()), doomed) == {
        "live.pending_kill": PendingKill(_HANG, 3.0, evidence=True)
    }


def test_a_signal_counts_from_its_first_sending() -> None:
    state = after(_LAUNCHED, SignalSent(1, "SIGTERM", ""))
    assert changes(SignalSent(1, "SIGTERM", ""), state) == {}
    both = (Sent("SIGTERM", 3.0), Sent("SIGKILL", 50.0))
    assert changes(SignalSent(1, "SIGKILL", ""), state) == {"live.sent": both}


def test_an_end_is_written_down_whole() -> None:
    end = AttemptEnded(1, -9, "failed", "signal", "what", "why", "fix", "log", 20, "OS011", "yes")
    worn = after(_LAUNCHED, CheckpointStarted(1, 30), progress(1, 25))
    assert changes(end, worn) == {
        "state": "recovering",
        "best_complete": 20,
        "newest_complete": 20,
        "saving_step": None,
        "tokens_per_s": None,
        "attempt.ended_s": 50.0,
        "attempt.outcome": "failed",
        "attempt.returncode": -9,
        "attempt.cause_class": "signal",
        "attempt.what": "what",
        "attempt.why": "why",
        "attempt.fix": "fix",
        "attempt.where": "log",
        "attempt.newest_complete": 20,
        "attempt.cause_id": "OS011",
        "attempt.retry": "yes",
        "attempt.fruitful": True,
    }
    assert at(50.0, end, worn).live is None


@pytest.mark.parametrize(
    ("resume_step", "newest", "outcome", "fruitful", "fruitless"),
    [
        (0, 0, "failed", False, 3),
        (0, 1, "failed", True, 0),
        (20, 20, "failed", False, 3),
        (20, 19, "failed", False, 3),
        (20, 21, "failed", True, 0),
        (20, 20, "stopped", False, 2),
        (20, 20, "finished", False, 2),
    ],
)
def test_an_attempt_is_fruitful_with_a_newer_checkpoint(
    resume_step: int, newest: int, outcome: str, fruitful: bool, fruitless: int
) -> None:
    state = at(2.0, LaunchAsked(1, resume_step), replace(after(), fruitless=2))
    state = at(9.0, replace(failed(1, newest), outcome=outcome), state)
    assert state.attempt is not None
    assert (state.attempt.fruitful, state.fruitless) == (fruitful, fruitless)
    assert state.best_complete == max(resume_step, newest)
    assert state.state == ("recovering" if outcome == "failed" else "starting")


@pytest.mark.parametrize(
    ("launch", "ready", "lasted_s", "fruitful"),
    [
        (_SERVER, True, SERVED_S, True),
        (_SERVER, True, SERVED_S - 1, False),
        (_SERVER, False, 10 * SERVED_S, False),
        (replace(_SERVER, roles=("inference", "trainer")), True, 10 * SERVED_S, False),
    ],
)
def test_a_service_is_fruitful_once_it_has_answered_for_long(
    launch: LaunchAsked, ready: bool, lasted_s: float, fruitful: bool
) -> None:
    state = after(launch)
    if ready:
        state = at(100.0, ServiceReady(1, "inference", "url", 1.0), state)
    state = at(100.0 + lasted_s, failed(1), state)
    assert state.attempt is not None
    assert state.attempt.fruitful is fruitful


def test_the_alarms_that_asked_for_the_end_are_gone_with_it() -> None:
    state = after(_LAUNCHED, _NOTE, _ALERT, _DISK, _ALARM, failed(1))
    assert [standing.alarm for standing in state.alarms] == [_NOTE, _ALERT]


def test_services_are_ready_once_all_of_them_answer() -> None:
    state = after(_SERVICES)
    one = {"live.ready": ("inference",), "live.last_sign_s": 50.0}
    assert changes(ServiceReady(1, "inference", "url", 1.0), state) == one
    state = at(50.0, ServiceReady(1, "inference", "url", 1.0), state)
    assert changes(ServiceReady(1, "inference", "url", 1.0), state, 60.0) == {"live.last_sign_s": 60.0}
    both = {"live.ready": _ROLES[:2], "live.ready_s": 60.0, "live.last_sign_s": 60.0}
    assert changes(ServiceReady(1, "judge", "url", 1.0), state, 60.0) == both


def test_a_server_without_a_trainer_runs_once_it_answers() -> None:
    alone = changes(ServiceReady(1, "inference", "url", 1.0), after(_SERVER))
    assert (alone["state"], alone["live.ready_s"]) == ("running", 50.0)
    pair = after(LaunchAsked(1, 0, (), _ROLES[:2], _ROLES[:2]))
    assert "state" not in changes(ServiceReady(1, "inference", "url", 1.0), pair)


@pytest.mark.parametrize(
    ("first", "second", "gap_s", "changed"),
    [
        (StopAsked("SIGTERM"), StopAsked("SIGTERM"), SAME_WISH_S, {}),
        (StopAsked("SIGTERM"), StopAsked("SIGINT"), SAME_WISH_S + 0.1, {"stop_at_once": True}),
        (
            StopAsked("SIGTERM"),
            StopAsked("full", saves=False),
            0.5,
            {"stop_requested_s": 50.5, "stop_by": "full", "stop_saves": False},
        ),
        (StopAsked("full", saves=False), StopAsked("SIGTERM", saves=False), 9.0, None),
        (StopAsked("full"), StopAsked("SIGTERM"), 9.0, None),
        (StopAsked("SIGXCPU"), StopAsked("SIGXCPU"), 9.0, {}),  # every second
        (StopAsked("SIGTERM"), StopAsked("SIGUSR1"), 9.0, {}),
        (StopAsked("SIGUSR1"), StopAsked("SIGTERM"), 9.0, None),
        (StopAsked(STOP_COMMAND), StopAsked(STOP_COMMAND), 9.0, {"stop_at_once": True}),
        (StopAsked(STOP_COMMAND), StopAsked(STOP_COMMAND), SAME_WISH_S, {}),
    ],
)
def test_a_second_wish_to_stop(
    first: StopAsked, second: StopAsked, gap_s: float, changed: dict[str, object] | None
) -> None:
    state = at(50.0, first, after(_LAUNCHED))
    asked = (state.stop_requested_s, state.stop_by, state.stop_saves, state.stop_at_once)
    assert asked == (50.0, first.by, first.saves, False)
    found = changes(second, state, 50.0 + gap_s)
    if changed is None:  # the first one came from a watch: the second one is the first of a person
        assert str(found.pop("stop_by")).startswith("SIGTERM")
        changed = {"stop_requested_s": 50.0 + gap_s}
    assert found == changed


def test_haste_stays() -> None:
    state = after(_LAUNCHED, StopAsked("SIGTERM"), StopAsked("SIGTERM"))
    assert not state.stop_at_once
    state = at(60.0, StopAsked("SIGTERM"), state)
    assert at(3.0, StopAsked("SIGTERM"), state).stop_at_once


def test_an_alarm_stands_once_and_until_it_is_cleared() -> None:
    state = after(_LAUNCHED, _NOTE, _ALERT)
    louder = replace(_NOTE, answer="alert")
    assert changes(louder, state) == {"alarms": (ActiveAlarm(_ALERT, 4.0), ActiveAlarm(louder, 50.0))}
    for other in (AlarmCleared(1, "host", "clock_back", "x"), AlarmCleared(1, "host", "x", "this machine")):
        assert changes(other, state) == {}
    assert changes(AlarmCleared(1, "gpu", "clock_back", "this machine"), state) == {}
    cleared = changes(AlarmCleared(1, "host", "clock_back", "this machine"), state)
    assert cleared == {"alarms": (ActiveAlarm(_ALERT, 4.0),)}


@pytest.mark.parametrize(
    ("alarm", "dooms", "failures"),
    [
        (_ALARM, True, (("GPU-1", 1),)),
        (replace(_ALARM, where=""), True, ()),
        (replace(_ALARM, watch="engine"), True, ()),
        (replace(_ALARM, answer="alert"), False, ()),
        (replace(_ALARM, attempt=2), False, ()),
    ],
)
def test_an_alarm_that_asks_for_a_restart_ends_its_attempt(
    alarm: AlarmRaised, dooms: bool, failures: tuple[tuple[str, int], ...]
) -> None:
    found = changes(alarm, after(_LAUNCHED))
    assert found.pop("alarms") == (ActiveAlarm(alarm, 50.0),)
    assert found == ({"live.pending_kill": PendingKill(alarm, 50.0)} if dooms else {}) | (
        {"gpu_failures": failures} if failures else {}
    )


def test_an_alarm_leaves_a_stopping_attempt_alone_and_counts_its_gpu() -> None:
    state = after(_LAUNCHED, StopAsked("SIGTERM"), replace(_ALARM, where="GPU-2"), _ALARM, _ALARM)
    assert state.live is not None
    assert (state.live.pending_kill, state.gpu_failures) == (None, (("GPU-1", 1), ("GPU-2", 1)))


def test_small_events_set_what_they_name() -> None:
    state = after(_LAUNCHED)
    assert changes(ActivitySeen(1, "busy", 90.0), state) == {"live.excused_until_s": 90.0}
    assert changes(GpuLeftOut("GPU-2", ""), state) == {"left_out": ("GPU-2",)}
    left_out = after(GpuLeftOut("GPU-2", ""), GpuLeftOut("GPU-1", ""), GpuLeftOut("GPU-2", ""))
    assert left_out.left_out == ("GPU-1", "GPU-2")


@pytest.mark.parametrize(("fruitless", "left"), [(0, 0), (1, 0), (2, 1), (5, 4)])
def test_a_smaller_batch_is_another_try(fruitless: int, left: int) -> None:
    state = at(50.0, BatchShrunk(3, 4), replace(State(), fruitless=fruitless))
    assert (state.micro_batch, state.shrunk_after, state.fruitless) == (4, 3, left)


@pytest.mark.parametrize(
    ("name", "end"), [("stopped", "stopped"), ("finished", "finished"), ("failed", "failed"), ("odd", "failed")]
)
def test_a_closing_sets_the_end(name: str, end: str) -> None:
    assert changes(RunClosed(name, 7, "why"), after()) == {"state": end, "exit_code": 7, "reason": "why"}


def test_what_is_counted_from_a_clock_moves_with_it() -> None:
    state = after(
        *(_SERVER, ServiceReady(1, "inference", "url", 1.0), _HANG, SignalSent(1, "SIGABRT", "")),
        *(SignalSent(1, "SIGKILL", ""), TrainerStopped(1, 5), StopAsked("SIGTERM"), ActivitySeen(1, "busy", 90.0)),
    )
    assert changes(ClockJumped(1000.0), state, 1010.0) == {
        "stop_requested_s": 1008.0,
        "live.last_sign_s": 1007.0,
        "live.excused_until_s": 1090.0,
        "live.ready_s": 1003.0,
        "live.pending_kill": PendingKill(_HANG, 1004.0),
        "live.trainer_exit": TrainerExit("stopped", 1007.0, 5),
        "live.sent": (Sent("SIGABRT", 1005.0), Sent("SIGKILL", 1006.0)),
    }


def test_a_clock_moves_a_bare_attempt_an_ended_one_and_none() -> None:
    bare = after(_LAUNCHED)
    assert changes(ClockJumped(100.0), bare, 110.0) == {"live.last_sign_s": 102.0, "live.excused_until_s": 100.0}
    assert changes(ClockJumped(100.0), after(_LAUNCHED, failed(1)), 110.0) == {"attempt.ended_s": 103.0}
    assert changes(ClockJumped(100.0), after(), 110.0) == {}


# --- events of the trainer ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Phase(1, "data", "packing"), {"live.phase": "data", "live.phase_detail": "packing"}),
        *(
            (Phase(1, name), {"live.phase": name, "state": "running"})
            for name in ("train", "evaluate", "checkpoint", "export")
        ),
        (
            Evaluated(1, 10, 5.0, 64),
            dict.fromkeys(("first_validation", "last_validation"), Validation(10, 5.0, 64))
            | {"recent_validations": (Validation(10, 5.0, 64),)},
        ),
        (
            TasksEvaluated(1, 10, "sums", 0.25, 64, 0, 5.0),
            dict.fromkeys(("task_scores", "recent_scores"), (TaskScore("sums", 10, 0.25, 10, 0.25),)),
        ),
        (
            Measured(1, 10, "wiki", "loss", 3.5, 64),
            {"measured": (Measured(1, 10, "wiki", "loss", 3.5, 64),)},
        ),
        (RolloutsFailed(1, 10, "sums", 3, 64, "no such file"), {"rollouts_failed": 3}),
        (Sampled(1, 10, "a", "b"), {"samples": (Sampled(1, 10, "a", "b"),)}),
        (CheckpointStarted(1, 30), {"saving_step": 30}),
        (CheckpointUnreadable(1, 30, "bad"), {"unreadable": (30,)}),
        (_FAILED, {"live.failure": _FAILED, "live.trainer_exit": TrainerExit("failed", 50.0, 0)}),
        (
            TrainerStopped(1, 7),
            {"live.trainer_exit": TrainerExit("stopped", 50.0, 7), "attempt.last_step": 7, "step": 7},
        ),
        (
            TrainerFinished(1, 9, 0.5, "out"),
            {"live.trainer_exit": TrainerExit("finished", 50.0, 9), "attempt.last_step": 9, "step": 9, "final": "out"},
        ),
        (
            TrainerStarted(1, 78, 0, 1, "cpu", "fp32", 1000, 4096, 0),
            {"started": TrainerStarted(1, 78, 0, 1, "cpu", "fp32", 1000, 4096, 0)},
        ),
    ],
)
def test_a_word_of_the_trainer_is_a_sign_of_life_and_sets_what_it_names(
    event: Event, expected: dict[str, object]
) -> None:
    assert changes(event, after(_LAUNCHED)) == {"live.last_sign_s": 50.0, **expected}


def test_progress_sets_the_numbers_of_the_run() -> None:
    event = Progress(1, 12, 2.5, 300.0, 768)
    state = after(_LAUNCHED, Phase(1, "data", "packing"))
    record = Record(50.0, "trainer-1", 3, event)
    numbers = {"step": 12, "loss": 2.5, "tokens_per_s": 300.0, "tokens_seen": 768, "progress_s": 50.0}
    live = {"live.last_sign_s": 50.0, "live.phase": "train", "live.phase_detail": "", "live.first_progress": record}
    assert changes(event, state) == numbers | live | {"state": "running", "attempt.last_step": 12}
    later = at(60.0, progress(1, 13), at(50.0, event, state))
    assert later.live is not None
    assert later.live.first_progress == record


def test_a_checkpoint_that_is_saved_is_the_newest_and_readable() -> None:
    state = after(_LAUNCHED, CheckpointUnreadable(1, 40, "bad"), CheckpointUnreadable(1, 20, "bad"))
    assert state.unreadable == (20, 40)
    state = after(CheckpointStarted(1, 40), state=state)
    saved = changes(CheckpointSaved(1, 40, 1, 0.0, 7.0), state)
    assert saved == {
        "newest_complete": 40,
        "saving_step": None,
        "unreadable": (20,),
        "saved_s": 50.0,
        "saves_s": (7.0,),
        "live.last_sign_s": 50.0,
    }


def test_the_score_of_an_environment_keeps_its_first_evaluation() -> None:
    first, other = TasksEvaluated(1, 0, "sums", 0.25, 64, 0, 5.0), TasksEvaluated(1, 0, "sort", 0.5, 64, 0, 5.0)
    state = after(_LAUNCHED, first, other, replace(first, step=40, reward=0.75))
    assert state.task_scores == (TaskScore("sums", 0, 0.25, 40, 0.75), TaskScore("sort", 0, 0.5, 0, 0.5))


def test_an_earlier_step_takes_back_the_evaluations_of_weights_that_are_gone() -> None:
    scores = [TasksEvaluated(1, step, "sums", step / 100, 64, 0, 5.0) for step in (10, 20, 30)]
    late = TasksEvaluated(1, 30, "sort", 0.5, 64, 0, 5.0)
    measured = [Measured(1, step, "wiki", "loss", 3.5, 64) for step in (10, 20, 30)]
    losses = [Evaluated(1, step, 5.0 - step / 100, 64) for step in (10, 20, 30)]
    state = after(_LAUNCHED, *losses, *scores, late, *measured, Sampled(1, 30, "a", "b"))
    back = rewind(state, 20)
    assert back.recent_validations == (Validation(10, 4.9, 64), Validation(20, 4.8, 64))
    assert (back.first_validation, back.last_validation) == back.recent_validations
    assert [(score.environment, score.first_step, score.first_reward) for score in back.task_scores] == [
        ("sums", 10, 0.1)
    ]
    assert [(score.step, score.reward) for score in back.task_scores] == [(20, 0.2)]
    assert [score.step for score in back.recent_scores] == [10, 20]
    assert [one.step for one in back.measured] == [10, 20]
    assert back.samples == state.samples
    assert rewind(state, 15).last_validation == Validation(10, 4.9, 64)
    first = rewind(state, 0)
    assert (first.first_validation, first.last_validation, first.task_scores, first.samples) == (None, None, (), ())


def test_a_score_that_is_no_longer_known_goes_back_to_the_first_one() -> None:
    first = TaskScore("sums", 0, 0.25, 90, 0.75)
    state = replace(after(_LAUNCHED), task_scores=(first,), recent_scores=(first,))
    assert rewind(state, 40).task_scores == (TaskScore("sums", 0, 0.25, 0, 0.25),)


def test_a_first_evaluation_that_is_repeated_is_replaced() -> None:
    once = TasksEvaluated(1, 10, "sums", 0.25, 64, 0, 5.0)
    assert after(_LAUNCHED, once, replace(once, reward=0.5)).task_scores == (TaskScore("sums", 10, 0.5, 10, 0.5),)


def test_progress_that_comes_after_the_end_does_not_set_the_step_back() -> None:
    state = folded(OPENED, LaunchAsked(1, 0), progress(1, 10), TrainerFinished(1, 12, 0.5, "x"), progress(1, 11))
    assert (state.step, state.loss) == (12, progress(1, 11).loss)


def test_progress_of_a_run_of_rewards_has_the_reward() -> None:
    assert after(_LAUNCHED, replace(progress(1, 5), reward=0.5)).reward == 0.5


def test_samples_of_one_step_are_kept_in_order_up_to_a_number() -> None:
    texts = [Sampled(1, 10, "a", str(number)) for number in range(SAMPLES_KEPT + 1)]
    assert after(_LAUNCHED, *texts[:2]).samples == tuple(texts[:2])
    assert after(_LAUNCHED, *texts).samples == tuple(texts[1:])


def test_a_failure_after_another_last_word_leaves_that_word() -> None:
    state = at(50.0, _FAILED, after(_LAUNCHED, TrainerStopped(1, 7)))
    assert state.live is not None
    assert (state.live.failure, state.live.trainer_exit) == (_FAILED, TrainerExit("stopped", 3.0, 7))


# --- marks and words ---------------------------------------------------------------------------------


def test_a_writer_is_marked_with_the_latest_attempt_it_speaks_for() -> None:
    assert at(1.0, _LAUNCHED, State()).read == (ReadPosition(SUPERVISOR, 0, None),)
    state = after(_LAUNCHED, progress(1, 5))
    assert state.read == (ReadPosition(SUPERVISOR, 1, None), ReadPosition("trainer-1", 2, 1))
    state = at(9.0, progress(3, 5), state, "trainer-1")
    state = at(9.0, progress(2, 5), state, "trainer-1")
    assert state.read[-1] == ReadPosition("trainer-1", 4, 3)
    assert at(9.0, progress(2, 5), state, SUPERVISOR).read[-1] == ReadPosition(SUPERVISOR, 5, None)
    assert at(9.0, OPENED, state, "trainer-1").read[-1] == ReadPosition("trainer-1", 5, None)


def test_a_launch_drops_the_marks_of_earlier_attempts_alone() -> None:
    state = at(9.0, progress(3, 5), after(_LAUNCHED, progress(1, 5), progress(2, 5)))
    kept = after(LaunchAsked(2, 0), state=state).read
    assert [(mark.writer, mark.attempt) for mark in kept] == [("trainer-2", 2), ("trainer-3", 3), (SUPERVISOR, None)]


def test_a_record_is_folded_once() -> None:
    state = after(_LAUNCHED, progress(1, 5))
    for seq, folds in ((1, False), (2, False), (3, True)):
        assert (fold(state, Record(9.0, "trainer-1", seq, progress(1, 6))) != state) == folds


def test_the_last_event_is_what_changed_the_run_and_has_words() -> None:
    state = after(_LAUNCHED, Phase(1, "data"))
    words = (state.last_event, state.last_event_s)
    assert words == (describe(Phase(1, "data")), 3.0)
    state = at(9.0, progress(1, 5), state)
    assert (state.last_event, state.last_event_s) == words
    state = at(9.0, Phase(2, "export"), state)
    assert (state.last_event, state.last_event_s) == words


def test_what_was_learned_of_the_trainers_pace_is_kept() -> None:
    state = after(_LAUNCHED, *(progress(1, step) for step in range(1, 10)))
    assert (state.learned.attempt, state.learned.step, state.learned.largest_gap_s) == (1, 9, 1.0)


def test_after_the_end_only_an_opening_counts() -> None:
    closed = after(_LAUNCHED, failed(1), RunClosed("failed", 5, "x"))
    for event in (LaunchAsked(2, 0), StopAsked("SIGINT"), _NOTE, ClockJumped(5.0)):
        assert changes(event, closed) == {}
    assert changes(OPENED, closed)["exit_code"] is None


# --- properties -------------------------------------------------------------------------------------

histories = st.lists(st.tuples(st.sampled_from([SUPERVISOR, "trainer-1", "trainer-2"]), any_event), max_size=40)


def records(written: list[tuple[str, Event]]) -> list[Record]:
    return [Record(float(seq), writer, seq, event) for seq, (writer, event) in enumerate(written)]


@given(histories)
@example([(SUPERVISOR, LaunchAsked(1, 0)), (SUPERVISOR, LaunchAsked(2, 0))])
def test_any_history_folds_and_an_end_absorbs(written: list[tuple[str, Event]]) -> None:
    state = State()
    for record in records(written):
        before, state = state, fold(state, record)
        if before.closed and not isinstance(record.event, RunOpened):
            assert replace(state, read=()) == replace(before, read=())
        assert (state.live is not None) == (state.attempt is not None and not state.attempt.outcome)
        assert sum(not attempt.outcome for attempt in state.attempts) <= 1, "two live attempts"


@given(histories, st.randoms(use_true_random=False))
def test_what_was_read_before_changes_nothing(written: list[tuple[str, Event]], chance: random.Random) -> None:
    once, again, said = State(), State(), records(written)
    for position, record in enumerate(said):
        once, again = fold(once, record), fold(again, record)
        again = fold(again, chance.choice(said[: position + 1]))
    assert replace(once, read=()) == replace(again, read=())


@given(histories)
def test_an_event_of_a_later_version_changes_nothing_but_the_words(written: list[tuple[str, Event]]) -> None:
    plain, mixed = State(), State()
    for record in records(written):
        plain = fold(plain, record)
        mixed = fold(fold(mixed, Record(record.time_s, "later", record.seq, Unrecognised("moved"))), record)
    assert replace(mixed, read=(), last_event="", last_event_s=None) == replace(
        plain, read=(), last_event="", last_event_s=None
    )


@given(st.integers(1, 30), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_how_the_writers_are_interleaved_does_not_change_where_the_run_stands(
    steps: int, ranks: int, chance: random.Random
) -> None:
    """Ranks write their own files; only the order within a file, and launch before words, is certain."""
    head = [Record(0.0, SUPERVISOR, 0, OPENED), Record(0.0, SUPERVISOR, 1, LaunchAsked(1, 0))]
    files = [[Record(float(n), "trainer-0", n, progress(1, n)) for n in range(1, steps + 1)]]
    for rank in range(1, ranks + 1):
        started = TrainerStarted(1, rank, rank, ranks, "cpu", "fp32", 1, 1, 0)
        files.append([Record(1.0, f"trainer-{rank}", 0, started)])
    files.append([Record(1.0, SUPERVISOR, 2, ChildStarted(1, "trainer", 9, 9, "log"))])
    state = fold_all(head)
    while any(files):
        state = fold(state, chance.choice([file for file in files if file]).pop(0))
    assert (state.step, state.state) == (steps, "running")
    assert state.live is not None
    assert state.live.children == (ChildProcess("trainer", 9, 9, "log"),)


@pytest.mark.parametrize(
    ("launch", "told", "origin"),
    [
        (LaunchAsked(1, 0), "attempt 1 starts from the beginning", "the beginning"),
        (LaunchAsked(1, 40, knows_step=False), "attempt 1 resumes from step 40", "step 40"),
        (
            LaunchAsked(1, 0, knows_step=False),
            "attempt 1 starts; from which step is not known",
            "a step that is not known",
        ),
    ],
)
def test_an_attempt_names_its_origin_where_it_is_known(launch: LaunchAsked, told: str, origin: str) -> None:
    assert describe(launch) == told
    attempt = fold(State(), Record(0.0, "supervisor", 1, launch)).attempt
    assert attempt is not None
    assert attempt.describe_origin() == origin


def test_a_change_is_in_force_from_its_step_on_also_after_the_run_went_back() -> None:
    def applied(attempt: int, version: int, step: int, *values: str) -> SettingsApplied:
        return SettingsApplied(attempt, version, step, values, 100)

    seen: list[Event] = []
    found = []
    for event in (
        LaunchAsked(1, 0),
        applied(1, 1, 5, "a = 1"),
        applied(1, 2, 15, "a = 2"),
        LaunchAsked(2, 10),
        applied(2, 1, 5, "a = 1"),
        applied(2, 2, 15, "a = 2"),
        LaunchAsked(3, 10),
        applied(3, 2, 11),  # dropped: it is passed without its values
        applied(3, 3, 12, "a = 3"),
        LaunchAsked(4, 2),
    ):
        seen.append(event)
        found.append(fold_all(Record(float(n), "w", n, each) for n, each in enumerate(seen)).settings_in_force)
    none = (0, 0)
    assert found == [none, (1, 5), (2, 15), (1, 5), (1, 5), (2, 15), (1, 5), (1, 5), (3, 12), none]
