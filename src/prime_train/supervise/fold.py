"""Folds the events of a run into its State. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import get_args

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.event_text import describe
from prime_train.supervise.state import (
    ActiveAlarm,
    Attempt,
    Child,
    Live,
    PendingKill,
    ReadPosition,
    RunState,
    Sent,
    State,
    TaskScore,
    TrainerExit,
    Validation,
    evolve,
    evolve_attempt,
    evolve_live,
)
from prime_train.supervise.watches.hang.silence_limits import learn, shift_time

ATTEMPTS_KEPT = 100
EVALUATIONS_KEPT = 64  # a resume from an earlier checkpoint goes back to one of them
MEASURES_KEPT = 1024  # of sets of text and benchmarks; an evaluation has a few of them, or some dozens
SAVES_KEPT = 5
_TRAINER_EVENTS = frozenset(get_args(events.TrainerEvent))
SERVED_S = 600.0  # a service that answered for this long counts as progress, even if it fails later
# `timeout` and some schedulers signal the process and its group: one request that arrives twice.
SAME_WISH_S = 1.0


def fold(state: State, record: Record) -> State:
    """The state after one more event. Events that were read before change nothing, nor do events of a closed run."""
    position = next((position for position in state.read if position.writer == record.writer), None)
    if position is not None and position.life == record.life and record.seq <= position.seq:
        return state
    folded = state
    if not state.closed or isinstance(record.event, events.RunOpened):
        is_trainers = type(record.event) in _TRAINER_EVENTS
        folded = fold_trainer(state, record) if is_trainers else _fold_supervisor(state, record)
        learned = learn(folded.learned, record)
        folded = folded if learned is folded.learned else evolve(folded, learned=learned)
    text = "" if folded is state else describe(record.event)
    if text:
        folded = evolve(folded, last_event=text, last_event_s=record.time_s)
    return evolve(folded, read=_update_positions(folded.read, record, position))


def fold_all(records: Iterable[Record]) -> State:
    """The state after a whole history."""
    return reduce(fold, records, State())


def _update_positions(
    read: tuple[ReadPosition, ...], record: Record, before: ReadPosition | None
) -> tuple[ReadPosition, ...]:
    """The read positions after this record. A launch drops the writers of earlier attempts: they write no more."""
    attempt = getattr(record.event, "attempt", None) if type(record.event) in _TRAINER_EVENTS else None
    if before is not None:
        attempt = None if before.attempt is None or attempt is None else max(before.attempt, attempt)
    others = [position for position in read if position.writer != record.writer]
    if isinstance(record.event, events.LaunchAsked):
        others = [other for other in others if other.attempt is None or other.attempt >= record.event.attempt]
    return (*others, ReadPosition(record.writer, record.seq, attempt, record.life))


# --- the supervisor's events -----------------------------------------------------------------------


def _fold_supervisor(state: State, record: Record) -> State:
    match record.event:
        case events.RunOpened() as event:
            return _open(state, event, record.time_s)
        case events.LaunchAsked() as event:
            return _launch(state, event, record.time_s)
        case events.StopAsked() as event:
            return _request_stop(state, event, record.time_s)
        case events.ClockJumped(jump_s=jump_s):
            return _shift_times(state, jump_s, record.time_s)
        case events.BatchShrunk(attempt=number, micro_batch=micro_batch):
            tries = max(0, state.fruitless - 1)  # the next attempt differs, so it does not count as a repetition
            return evolve(state, micro_batch=micro_batch, shrunk_after=number, fruitless=tries)
        case events.EventsDamaged(what=what):
            return evolve(state, damage=what)
        case events.GpuLeftOut(gpu=gpu):
            return evolve(state, left_out=tuple(sorted({*state.left_out, gpu})))
        case events.AlarmRaised() as event:
            return _raise_alarm(state, event, record.time_s)
        case events.AlarmCleared(watch=watch, name=name, subject=subject):
            left = (active for active in state.alarms if active.key != (watch, name, subject))
            return evolve(state, alarms=tuple(left))
        case events.RunClosed() as event:
            end: RunState = event.state if event.state in ("stopped", "finished") else "failed"  # type: ignore[assignment]
            return evolve(state, state=end, exit_code=event.exit_code, reason=event.reason)
    if state.live is not None and state.live.number == getattr(record.event, "attempt", None):
        return _fold_attempt(state, state.live, record)
    return state


def _fold_attempt(state: State, live: Live, record: Record) -> State:
    """The events of the live attempt."""
    match record.event:
        case events.ChildStarted() as event:
            child = Child(event.role, event.pid, event.start_ticks, event.log)
            if state.attempts[-1].started_s is None:
                state = evolve_attempt(state, started_s=record.time_s)
            return evolve_live(state, children=(*live.children, child), last_sign_s=record.time_s)
        case events.HangFound() as event:
            return _plan_kill(state, live, event, record.time_s)
        case events.SignalSent(signal=signal) if signal not in (earlier.signal for earlier in live.sent):
            return evolve_live(state, sent=(*live.sent, Sent(signal, record.time_s)))
        case events.AttemptEnded() as event:
            return _end_attempt(state, live, event, record.time_s)
        case events.ServiceReady(role=role):
            return _mark_ready(state, live, role, record.time_s)
        case events.ActivitySeen(until_s=until_s):
            return evolve_live(state, excused_until_s=until_s)
        case events.EvidenceKept() if live.pending_kill:
            return evolve_live(state, pending_kill=evolve(live.pending_kill, evidence=True))
        case _:
            return state


NOTICES = frozenset({"SIGUSR1", "SIGUSR2", "SIGXCPU"})  # a program sends them, and never in a hurry


def _request_stop(state: State, event: events.StopAsked, time_s: float) -> State:
    if state.stop_requested_s is None or (state.stop_saves and not event.saves):
        return evolve(state, stop_requested_s=time_s, stop_by=event.by, stop_saves=event.saves)
    if event.by in NOTICES:  # the kernel repeats SIGXCPU every second, and a scheduler may send its notice twice
        return state
    # The first request was a watch's or a notice: a person's first request is no hurry.
    if not state.stop_by.startswith("SIG") or state.stop_by in NOTICES:
        return evolve(state, stop_requested_s=time_s, stop_by=f"{event.by}, after {state.stop_by}")
    return evolve(state, stop_at_once=state.stop_at_once or time_s - state.stop_requested_s > SAME_WISH_S)


def _raise_alarm(state: State, event: events.AlarmRaised, time_s: float) -> State:
    """Adds the alarm. An alarm that asks for a restart ends its attempt, unless a stop is requested already: then the
    trainer may still save, and the grace period ends it."""
    active = ActiveAlarm(event, time_s)
    others = tuple(other for other in state.alarms if other.key != active.key)
    state = evolve(state, alarms=(*others, active))
    live = state.live
    if event.answer != "restart" or live is None or live.number != event.attempt:
        return state
    if event.watch == "gpu" and event.where:
        failures = sorted({*state.gpu_failures, (event.where, event.attempt)})
        state = evolve(state, gpu_failures=tuple(failures))
    return _plan_kill(state, live, event, time_s) if state.stop_requested_s is None else state


def _plan_kill(state: State, live: Live, found: events.HangFound | events.AlarmRaised, time_s: float) -> State:
    return state if live.pending_kill else evolve_live(state, pending_kill=PendingKill(found, time_s))


def _mark_ready(state: State, live: Live, role: str, time_s: float) -> State:
    ready = live.ready if role in live.ready else (*live.ready, role)
    all_ready = set(ready) >= set(live.services)
    state = evolve_live(state, ready=ready, ready_s=time_s if all_ready else None, last_sign_s=time_s)
    return evolve(state, state="running") if live.serves_only and all_ready else state


def _open(state: State, event: events.RunOpened, time_s: float) -> State:
    """A supervisor takes over: the counters of attempts start at zero, the progress of the run stays."""
    return evolve(
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
        stop_requested_s=None,
        stop_by="",
        stop_saves=True,
        stop_at_once=False,
        alarms=(),
        exit_code=None,
        reason="",
    )


def _launch(state: State, event: events.LaunchAsked, time_s: float) -> State:
    if event.attempt <= state.attempt_number:
        return state
    if state.live is not None:  # the event of its end is lost, because no launch happens while an attempt lives
        lost = "its end was not written down"
        state = evolve_attempt(state, ended_s=time_s, outcome="failed", cause_class="unknown", what=lost)
    state = _rewind(state, event.resume_step)
    before = state.attempt
    attempt = Attempt(event.attempt, event.resume_step, event.rejected, launched_s=time_s, last_step=event.resume_step)
    return evolve(
        state,
        attempts=(*state.attempts, attempt)[-ATTEMPTS_KEPT:],
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


def _rewind(state: State, step: int) -> State:
    """The state without the evaluations after `step`, because they belong to weights that are gone."""
    first, kept = state.first_validation, tuple(one for one in state.recent_validations if one.step <= step)
    first = first if first is not None and first.step <= step else None
    scores = tuple(score for score in state.recent_scores if score.step <= step)
    at_first = {
        score.environment: replace(score, step=score.first_step, reward=score.first_reward)
        for score in state.task_scores
        if score.first_step <= step
    }
    latest = {score.environment: score for score in scores if score.environment in at_first}
    return evolve(
        state,
        first_validation=first,
        last_validation=kept[-1] if kept else first,
        recent_validations=kept,
        task_scores=tuple((at_first | latest).values()),
        recent_scores=scores,
        measured=tuple(one for one in state.measured if one.step <= step),
        samples=() if step == 0 else state.samples,
    )


def _fold_validation(state: State, event: events.Evaluated) -> State:
    latest, first = Validation(event.step, event.loss, event.tokens), state.first_validation
    return evolve(
        state,
        first_validation=latest if first is None or first.step == event.step else first,
        last_validation=latest,
        recent_validations=(*state.recent_validations, latest)[-EVALUATIONS_KEPT:],
    )


def _end_attempt(state: State, live: Live, event: events.AttemptEnded, time_s: float) -> State:
    fruitful = event.newest_complete > state.best_complete or _served_long(live, time_s)
    state = evolve_attempt(
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
    return evolve(
        state,
        state="recovering" if event.outcome == "failed" else state.state,
        live=None,
        alarms=tuple(active for active in state.alarms if active.alarm.answer in ("note", "alert", "leave")),
        fruitless=0 if fruitful else state.fruitless + (event.outcome == "failed"),
        best_complete=max(state.best_complete, event.newest_complete),
        newest_complete=event.newest_complete,
        saving_step=None,
        tokens_per_s=None,
    )


def _served_long(live: Live, time_s: float) -> bool:
    """A service without a trainer writes no checkpoints, so the time that it served counts as its progress."""
    return live.serves_only and live.ready_s is not None and time_s - live.ready_s >= SERVED_S


def _shift_times(state: State, jump_s: float, reported_s: float) -> State:
    """Moves the start of every deadline, because a machine that slept has neither a hang nor a grace that ran out."""

    def shift(time_s: float) -> float:
        return shift_time(time_s, jump_s, reported_s)

    if state.stop_requested_s is not None:
        state = evolve(state, stop_requested_s=shift(state.stop_requested_s))
    if state.leaves_s is not None:
        state = evolve(state, alarms=tuple(_shift_deadline(active, jump_s, shift) for active in state.alarms))
    if state.live is not None:
        live = state.live
        left = live.trainer_exit and evolve(live.trainer_exit, time_s=shift(live.trainer_exit.time_s))
        sent = tuple(evolve(sent, time_s=shift(sent.time_s)) for sent in live.sent)
        kill = live.pending_kill and evolve(live.pending_kill, since_s=shift(live.pending_kill.since_s))
        ready_s = None if live.ready_s is None else shift(live.ready_s)
        # `excused_until_s` lies in the future, so it always moves.
        signs = {"last_sign_s": shift(live.last_sign_s), "excused_until_s": live.excused_until_s + jump_s}
        return evolve_live(state, **signs, trainer_exit=left, sent=sent, pending_kill=kill, ready_s=ready_s)
    if state.attempt is not None and state.attempt.ended_s is not None:
        return evolve_attempt(state, ended_s=shift(state.attempt.ended_s))
    return state


def _shift_deadline(active: ActiveAlarm, jump_s: float, shift: Callable[[float], float]) -> ActiveAlarm:
    """The alarm of a machine that goes away: its cloud counts the seconds on a clock that does not jump."""
    if active.alarm.answer != "leave" or shift(active.since_s) == active.since_s:
        return active
    return evolve(active, alarm=replace(active.alarm, deadline_s=active.alarm.deadline_s + jump_s))


SAMPLES_KEPT = 16


def fold_trainer(state: State, record: Record) -> State:
    """Only events of the live attempt count: a late event of an earlier attempt does not describe the present."""
    live = state.live
    event = record.event
    if live is None or not isinstance(event, events.TrainerEvent) or event.attempt != live.number:
        return state
    if not isinstance(event, events.Progress):  # nearly all events are of this kind
        state = evolve_live(state, last_sign_s=record.time_s)
    match event:
        case events.TrainerStarted() as event:
            return evolve(state, started=event) if event.rank == 0 else state
        case events.Phase(name=name, detail=detail):
            state = evolve_live(state, phase=name, phase_detail=detail)
            return evolve(state, state="running") if name in ("train", "evaluate", "checkpoint", "export") else state
        case events.Progress() as event:
            folded = _fold_progress(state, live, event, record)
            # prime-rl's last rows may be read after the launcher's last line.
            is_late = live.trainer_exit is not None and event.step < live.trainer_exit.step
            return evolve(evolve_attempt(folded, last_step=state.step), step=state.step) if is_late else folded
        case events.Evaluated() as event:
            return _fold_validation(state, event)
        case events.Measured() as event:
            return evolve(state, measured=(*state.measured, event)[-MEASURES_KEPT:])
        case events.TasksEvaluated() as event:
            return _fold_tasks(state, event)
        case events.RolloutsFailed(failed=failed):
            return evolve(state, rollouts_failed=state.rollouts_failed + failed)
        case events.Sampled() as event:
            same = state.samples if state.samples and state.samples[-1].step == event.step else ()
            return evolve(state, samples=(*same, event)[-SAMPLES_KEPT:])
        case events.CheckpointStarted(step=step):
            return evolve(state, saving_step=step)
        case events.CheckpointSaved(step=step, write_s=write_s):
            readable = tuple(other for other in state.unreadable if other != step)  # this attempt wrote it again
            saves_s = (*state.saves_s, write_s)[-SAVES_KEPT:]
            return evolve(state, newest_complete=step, saving_step=None, unreadable=readable, saves_s=saves_s)
        case events.CheckpointUnreadable(step=step):
            return evolve(state, unreadable=tuple(sorted({*state.unreadable, step})))
        case events.TrainerFailed() as event if live.failure is None or _outranks(event, live.failure):
            end = live.trainer_exit or TrainerExit("failed", record.time_s, state.step)
            return evolve_live(state, failure=event, trainer_exit=end)
        case events.TrainerStopped(step=step):
            return _fold_exit(state, TrainerExit("stopped", record.time_s, step))
        case events.TrainerFinished(step=step, final=final):
            return evolve(_fold_exit(state, TrainerExit("finished", record.time_s, step)), final=final)
        case _:
            return state


def _outranks(event: events.TrainerFailed, earlier: events.TrainerFailed) -> bool:
    """Whether a machine was lost, or its trainer killed, and another rank reported the lost connection before that."""
    return earlier.cause_class == "unknown" and event.cause_class in ("signal", "hardware")


def _fold_tasks(state: State, event: events.TasksEvaluated) -> State:
    earlier = {score.environment: score for score in state.task_scores}
    first = earlier.get(event.environment)
    first = None if first is not None and first.first_step == event.step else first
    score = TaskScore(
        environment=event.environment,
        first_step=first.first_step if first else event.step,
        first_reward=first.first_reward if first else event.reward,
        step=event.step,
        reward=event.reward,
    )
    return evolve(
        state,
        task_scores=tuple((earlier | {event.environment: score}).values()),
        recent_scores=(*state.recent_scores, score)[-EVALUATIONS_KEPT:],
    )


def _fold_progress(state: State, live: Live, event: events.Progress, record: Record) -> State:
    first = live.first_progress or record
    attempt = evolve(state.attempts[-1], last_step=event.step)
    return evolve(
        state,
        live=evolve(live, last_sign_s=record.time_s, phase="train", phase_detail="", first_progress=first),
        attempts=(*state.attempts[:-1], attempt),
        state="running",
        step=event.step,
        loss=event.loss,
        reward=event.reward,
        tokens_per_s=event.tokens_per_s,
        tokens_seen=event.tokens_seen,
        progress_s=record.time_s,
    )


def _fold_exit(state: State, end: TrainerExit) -> State:
    """The last event names the step exactly; Progress events come only a few times a second."""
    return evolve(evolve_attempt(evolve_live(state, trainer_exit=end), last_step=end.step), step=end.step)
