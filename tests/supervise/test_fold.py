from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from prime_train.events import (
    AttemptEnded,
    CheckpointSaved,
    CheckpointStarted,
    CheckpointUnreadable,
    ChildStarted,
    Evaluated,
    Event,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    Sampled,
    SignalSent,
    StopAsked,
    TrainerFailed,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
    Unrecognised,
)
from prime_train.supervise.fold import ATTEMPTS_KEPT, SAMPLES_KEPT, fold, fold_all
from prime_train.supervise.state import Child, State, Validation
from tests.events.test_log import any_event

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
    assert state.live.children == (Child("trainer", 77, 5, "log"),)
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
    assert state.live.children == (Child("trainer", 9, 9, "log"),)
