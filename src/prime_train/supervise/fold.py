"""Folds a run's events into what is known of it. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from prime_train.events import (
    ActivitySeen,
    AlarmCleared,
    AlarmRaised,
    AttemptEnded,
    BatchShrunk,
    ChildStarted,
    ClockJumped,
    EvidenceKept,
    GpuLeftOut,
    HangFound,
    LaunchAsked,
    Record,
    RunClosed,
    RunOpened,
    ServiceReady,
    SignalSent,
    StopAsked,
    TrainerEvent,
)
from prime_train.supervise.event_text import describe
from prime_train.supervise.fold_trainer import fold_trainer
from prime_train.supervise.state import (
    Attempt,
    Child,
    Doom,
    Live,
    Mark,
    RunState,
    Sent,
    Standing,
    State,
    changed,
    lives,
    with_attempt,
    with_live,
)
from prime_train.supervise.watches.hang.silence_limits import learn, shift_time

ATTEMPTS_KEPT = 100
SERVED_S = 600.0  # so long must a service have answered for its failure to be no fruitless attempt
# `timeout` and some schedulers send a signal to the process and to its group: the same wish, twice.
SAME_WISH_S = 1.0


def fold(state: State, record: Record) -> State:
    """The state after one more event. What was read before, and what comes after the end, changes nothing."""
    mark = next((mark for mark in state.read if mark.writer == record.writer), None)
    if mark is not None and record.seq <= mark.seq:
        return state
    folded = state
    if not state.closed or isinstance(record.event, RunOpened):
        folded = fold_trainer(_supervisor(state, record), record)
        learned = learn(folded.learned, record)
        folded = folded if learned is folded.learned else changed(folded, learned=learned)
    told = "" if folded is state else describe(record.event)
    if told:
        folded = changed(folded, last_event=told, last_event_s=record.time_s)
    return changed(folded, read=_marked(folded.read, record, mark))


def fold_all(records: Iterable[Record]) -> State:
    """The state after a whole history."""
    return reduce(fold, records, State())


def _marked(read: tuple[Mark, ...], record: Record, before: Mark | None) -> tuple[Mark, ...]:
    """The marks with this record's. A launch drops those of earlier attempts' writers: nobody hears these again."""
    speaks_for = getattr(record.event, "attempt", None) if isinstance(record.event, TrainerEvent) else None
    if before is not None and (before.attempt is None or speaks_for is None):
        speaks_for = None
    elif before is not None:
        speaks_for = max(before.attempt or 0, speaks_for or 0)
    others = [mark for mark in read if mark.writer != record.writer]
    if isinstance(record.event, LaunchAsked):
        others = [mark for mark in others if mark.attempt is None or mark.attempt >= record.event.attempt]
    return (*others, Mark(record.writer, record.seq, speaks_for))


# --- the supervisor's events -----------------------------------------------------------------------


def _supervisor(state: State, record: Record) -> State:
    match record.event:
        case RunOpened() as event:
            return _opened(state, event, record.time_s)
        case LaunchAsked() as event:
            return _launched(state, event, record.time_s)
        case ChildStarted(attempt=number) as event:
            return _started(state, event, record.time_s) if lives(state, number) else state
        case HangFound(attempt=number) as event:
            return _doomed(state, event, record.time_s) if lives(state, number) else state
        case SignalSent(attempt=number) as event:
            return _sent(state, Sent(event.signal, record.time_s)) if lives(state, number) else state
        case AttemptEnded(attempt=number) as event:
            return _ended(state, event, record.time_s) if lives(state, number) else state
        case StopAsked(by=by, saves=saves):
            if state.stop_asked_s is None or (state.stop_saves and not saves):
                return changed(state, stop_asked_s=record.time_s, stop_by=by, stop_saves=saves)
            if not state.stop_by.startswith("SIG"):  # a watch has asked, a person only now: that is no haste
                return changed(state, stop_asked_s=record.time_s, stop_by=f"{by}, after {state.stop_by}")
            return changed(state, stop_hurried=state.stop_hurried or record.time_s - state.stop_asked_s > SAME_WISH_S)
        case ClockJumped(jump_s=jump_s):
            return _jumped(state, jump_s, record.time_s)
        case BatchShrunk(attempt=number, micro_batch=micro_batch):
            tries = max(0, state.fruitless - 1)  # the next attempt is another one: it does not count as the same again
            return changed(state, micro_batch=micro_batch, shrunk_after=number, fruitless=tries)
        case GpuLeftOut(gpu=gpu):
            return changed(state, left_out=tuple(sorted({*state.left_out, gpu})))
        case AlarmRaised() | AlarmCleared() | ServiceReady() | ActivitySeen() | EvidenceKept():
            return _watched(state, record.event, record.time_s)
        case RunClosed() as event:
            end: RunState = event.state if event.state in ("stopped", "finished") else "failed"  # type: ignore[assignment]
            return changed(state, state=end, exit_code=event.exit_code, reason=event.reason)
        case _:
            return state


def _watched(
    state: State, event: AlarmRaised | AlarmCleared | ServiceReady | ActivitySeen | EvidenceKept, time_s: float
) -> State:
    match event:
        case AlarmRaised():
            return _alarmed(state, event, time_s)
        case AlarmCleared(watch=watch, name=name, subject=subject):
            left = (standing for standing in state.alarms if standing.key != (watch, name, subject))
            return changed(state, alarms=tuple(left))
        case ServiceReady(attempt=number, role=role) if lives(state, number):
            return _answers(state, role, time_s)
        case ActivitySeen(attempt=number, until_s=until_s) if lives(state, number):
            return with_live(state, excused_until_s=until_s)
        case EvidenceKept(attempt=number) if lives(state, number):
            assert state.live is not None
            return with_live(state, doom=changed(state.live.doom, evidence=True)) if state.live.doom else state
        case _:
            return state


def _alarmed(state: State, event: AlarmRaised, time_s: float) -> State:
    """The alarm stands; one that asks for a restart ends the attempt it was raised in, unless that is to stop anyway:
    it may still save, and its grace ends it."""
    standing = Standing(event, time_s)
    others = tuple(other for other in state.alarms if other.key != standing.key)
    state = changed(state, alarms=(*others, standing))
    if event.answer != "restart" or not lives(state, event.attempt):
        return state
    if event.watch == "gpu" and event.where:
        failures = sorted({*state.gpu_failures, (event.where, event.attempt)})
        state = changed(state, gpu_failures=tuple(failures))
    return _doomed(state, event, time_s) if state.stop_asked_s is None else state


def _doomed(state: State, found: HangFound | AlarmRaised, time_s: float) -> State:
    assert state.live is not None
    return state if state.live.doom else with_live(state, doom=Doom(found, time_s))


def _answers(state: State, role: str, time_s: float) -> State:
    assert state.live is not None
    ready = (*state.live.ready, *([] if role in state.live.ready else [role]))
    since_s = time_s if set(ready) >= set(state.live.services) else None
    state = with_live(state, ready=ready, ready_s=since_s, last_sign_s=time_s)
    assert state.live is not None
    return changed(state, state="running") if state.live.serves_only and since_s is not None else state


def _opened(state: State, event: RunOpened, time_s: float) -> State:
    """Another supervisor: the budget is full again, what the run has reached stays."""
    return changed(
        state,
        run=event.run,
        max_steps=event.max_steps,
        state="starting",
        opened_s=time_s,
        first_opened_s=time_s if state.first_opened_s is None else state.first_opened_s,
        supervisor_pid=event.pid,
        launched=False,
        fruitless=0,
        best_complete=0,
        unreadable=(),
        stop_asked_s=None,
        stop_by="",
        stop_saves=True,
        stop_hurried=False,
        alarms=(),
        exit_code=None,
        reason="",
    )


def _launched(state: State, event: LaunchAsked, time_s: float) -> State:
    if event.attempt <= state.attempt_number:
        return state
    if state.live is not None:  # the line of its end is lost: the supervisor launches only where none lives
        lost = "its end was not written down"
        state = with_attempt(state, ended_s=time_s, outcome="failed", cause_class="unknown", what=lost)
    if event.resume_step == 0:  # what was measured is of weights that are gone
        state = changed(state, first_validation=None, last_validation=None, samples=())
    before = state.attempt
    asked = Attempt(event.attempt, event.resume_step, event.rejected, asked_s=time_s, last_step=event.resume_step)
    return changed(
        state,
        attempts=(*state.attempts, asked)[-ATTEMPTS_KEPT:],
        live=Live(event.attempt, last_sign_s=time_s, roles=event.roles, services=event.services),
        launched=True,
        restarts=state.restarts + (before is not None and before.outcome == "failed"),
        best_complete=max(state.best_complete, event.resume_step),
        newest_complete=event.resume_step,
        rejected=event.rejected,
        saving_step=None,
        step=event.resume_step,
        tokens_per_s=None,
    )


def _started(state: State, event: ChildStarted, time_s: float) -> State:
    assert state.live is not None
    child = Child(event.role, event.pid, event.start_ticks, event.log)
    began_s = state.attempts[-1].started_s
    state = with_attempt(state, started_s=time_s if began_s is None else began_s)
    return with_live(state, children=(*state.live.children, child), last_sign_s=time_s)  # type: ignore[union-attr]


def _sent(state: State, sent: Sent) -> State:
    assert state.live is not None
    if any(earlier.signal == sent.signal for earlier in state.live.sent):
        return state
    return with_live(state, sent=(*state.live.sent, sent))


def _ended(state: State, event: AttemptEnded, time_s: float) -> State:
    assert state.live is not None
    fruitful = event.newest_complete > state.best_complete or _served_long(state.live, time_s)
    state = with_attempt(
        state,
        ended_s=time_s,
        outcome=event.outcome,
        returncode=event.returncode,
        cause_class=event.cause_class,
        what=event.what,
        why=event.why,
        fix=event.fix,
        where=event.where,
        newest_complete=event.newest_complete,
        cause_id=event.cause_id,
        retry=event.retry,
        fruitful=fruitful,
    )
    return changed(
        state,
        state="recovering" if event.outcome == "failed" else state.state,
        live=None,
        alarms=tuple(standing for standing in state.alarms if standing.alarm.answer in ("note", "alert")),
        fruitless=0 if fruitful else state.fruitless + (event.outcome == "failed"),
        best_complete=max(state.best_complete, event.newest_complete),
        newest_complete=event.newest_complete,
        saving_step=None,
        tokens_per_s=None,
    )


def _served_long(live: Live, time_s: float) -> bool:
    """A service alone writes no checkpoints: to have answered for long is what it brings."""
    return live.serves_only and live.ready_s is not None and time_s - live.ready_s >= SERVED_S


def _jumped(state: State, jump_s: float, told_s: float) -> State:
    """Move what deadlines are counted from, so that a laptop that slept finds neither a hang nor a grace used up."""

    def on_it(time_s: float) -> float:
        return shift_time(time_s, jump_s, told_s)

    if state.stop_asked_s is not None:
        state = changed(state, stop_asked_s=on_it(state.stop_asked_s))
    if state.live is not None:
        live = state.live
        word = changed(live.word, time_s=on_it(live.word.time_s)) if live.word else None
        sent = tuple(changed(sent, time_s=on_it(sent.time_s)) for sent in live.sent)
        doom = changed(live.doom, since_s=on_it(live.doom.since_s)) if live.doom else None
        ready_s = None if live.ready_s is None else on_it(live.ready_s)
        # An excuse ends in the time to come, so it moves in any case.
        signs = {"last_sign_s": on_it(live.last_sign_s), "excused_until_s": live.excused_until_s + jump_s}
        return with_live(state, **signs, word=word, sent=sent, doom=doom, ready_s=ready_s)
    if state.attempt is not None and state.attempt.ended_s is not None:
        return with_attempt(state, ended_s=on_it(state.attempt.ended_s))
    return state
