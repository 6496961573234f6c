"""Folds what the supervisor does and finds into the State: attempts, requests to stop, alarms, a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prime_train import events
from prime_train.events import Record
from prime_train.supervise.core import fold_commands, fold_instability
from prime_train.supervise.core.state import (
    ASKERS,
    ActiveAlarm,
    AttemptState,
    ChildProcess,
    Live,
    PendingKill,
    RunState,
    Sent,
    State,
    evolve,
    evolve_attempt,
    evolve_live,
)
from prime_train.supervise.watches.hang.silence_limits import shift_time

ATTEMPTS_KEPT = 100
GPUS_KEPT = 64  # of one machine
ANSWERS_KEPT = 1000  # of requests; a writer repeats one within minutes
SERVED_S = 600.0  # a service that answered for this long counts as progress, even if it fails later
# `timeout` and some schedulers signal the process and its group: one request that arrives twice.
SAME_WISH_S = 1.0


def fold_supervisor(state: State, record: Record) -> State:
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
        case events.GpuReturned(gpu=gpu):
            kept = tuple(one for one in state.left_out if one != gpu)
            if state.live is not None:
                state = evolve_live(state, freed_gpus=tuple(one for one in state.live.freed_gpus if one != gpu))
            return evolve(state, left_out=kept, gpu_failures=tuple(one for one in state.gpu_failures if one[0] != gpu))
        case events.GpuTestBegun(request_id=request_id):
            return fold_commands.mark_test(state, request_id)
        case events.GpuTested() as event:
            tests = (*(one for one in state.gpu_tests if one.gpu != event.gpu), event)
            return evolve(state, gpu_tests=tests[-GPUS_KEPT:])
        case events.AlarmRaised() as event:
            return _raise_alarm(state, event, record.time_s)
        case events.AlarmCleared(watch=watch, name=name, subject=subject):
            left = (active for active in state.alarms if active.key != (watch, name, subject))
            return evolve(state, alarms=tuple(left))
        case events.RequestAnswered() as event:
            answered = (*(one for one in state.answered if one != event.request_id), event.request_id)
            state = fold_instability.answer(evolve(state, answered=answered[-ANSWERS_KEPT:]), event)
            return fold_commands.answer(state, event, record.time_s)
        case events.InstabilityFound() as event:
            return fold_instability.find(state, event)
        case events.CommandAccepted() as event:
            return fold_commands.accept(fold_instability.accept(state, event), event, record.time_s)
        case events.SettingsAccepted(version=version):
            return evolve(state, settings_version=max(state.settings_version, version), is_proposed=False)
        case events.RunClosed() as event:
            end: RunState = event.state if event.state in ("stopped", "finished") else "failed"  # type: ignore[assignment]
            return evolve(state, state=end, exit_code=event.exit_code, reason=event.reason)
    if state.live is not None and state.live.number == getattr(record.event, "attempt", None):
        return _fold_attempt(state, state.live, record)
    return state


def _fold_attempt(state: State, live: Live, record: Record) -> State:
    match record.event:
        case events.ChildStarted() as event:
            child = ChildProcess(event.role, event.pid, event.start_ticks, event.log)
            if state.attempts[-1].started_s is None:
                state = evolve_attempt(state, started_s=record.time_s)
            return evolve_live(state, children=(*live.children, child), last_sign_s=record.time_s)
        case events.HangFound() as event:
            return _plan_kill(state, live, event, record.time_s)
        case events.SignalSent(signal="save_requested"):  # it ends nothing, and may be repeated
            return fold_commands.mark_sent(state)
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
    if state.halt is not None:  # the end of the run overrules the end of an attempt, and is no second request
        state = evolve(state, halt=None, go_back_to=0, stop_requested_s=None)
    # A disk that takes no save overrules a stop that waits for one: the wait would end in the same failure.
    if state.stop_requested_s is None or (state.stop_saves and not event.saves):
        return evolve(state, stop_requested_s=time_s, stop_by=event.by, stop_saves=event.saves)
    if event.by in NOTICES:  # the kernel repeats SIGXCPU every second, and a scheduler may send its notice twice
        return state
    # The first request was a watch's or a notice: a person's first request is no hurry.
    if not state.stop_by.startswith(ASKERS) or state.stop_by in NOTICES:
        return evolve(state, stop_requested_s=time_s, stop_by=f"{event.by}, after {state.stop_by}")
    return evolve(state, stop_at_once=state.stop_at_once or time_s - state.stop_requested_s > SAME_WISH_S)


def _raise_alarm(state: State, event: events.AlarmRaised, time_s: float) -> State:
    """Adds the alarm.

    An alarm that asks for a restart ends its attempt, unless a stop is requested already: then the trainer may still
    save, and the grace period ends it.
    """
    active = ActiveAlarm(event, time_s)
    others = tuple(other for other in state.alarms if other.key != active.key)
    state = evolve(state, alarms=(*others, active))
    live = state.live
    if event.answer != "restart" or live is None or live.number != event.attempt:
        return state
    # Counted here and not at the end, because an attempt may end for another reason first.
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


def rewind(state: State, step: int) -> State:
    """The state without the evaluations after `step`, because they belong to weights that are gone."""
    first, kept = state.first_validation, tuple(one for one in state.recent_validations if one.step <= step)
    first = first if first is not None and first.step <= step else None
    scores = tuple(score for score in state.recent_scores if score.step <= step)
    # A later evaluation is lost with its weights, but the first one still shows where the run began.
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
        commands=(),
        is_proposed=False,
        accepted_by="",
        halt=None,  # who gives the command of the run again wants it to train
        go_back_to=0,
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
    # Status and report must agree: neither shows figures of weights that the resume has dropped.
    step = event.resume_step
    state = rewind(state, step)
    before = state.attempt
    attempt = AttemptState(
        event.attempt, step, event.rejected, launched_s=time_s, last_step=step, knows_step=event.knows_step
    )
    return evolve(
        state,
        attempts=(*state.attempts, attempt)[-ATTEMPTS_KEPT:],
        live=Live(event.attempt, last_sign_s=time_s, roles=event.roles, services=event.services),
        launched=True,
        state="starting" if state.halt is not None else state.state,
        halt=None,
        go_back_to=0,
        # A person's command is no restart after a failure, and later checkpoints that a person gave up are no measure.
        restarts=state.restarts + (before is not None and before.outcome == "failed" and state.halt is None),
        fruitless=state.fruitless if state.halt is None else 0,
        best_complete=step if state.go_back_to else max(state.best_complete, step),
        newest_complete=step,
        # What began after this step is not in force until this attempt has put it in force again.
        settings_in_force=max((one for one in state.settings_applied if one[1] <= step), default=(0, 0)),
        rejected=event.rejected,
        saving_step=None,
        step=step,
        tokens_per_s=None,
    )


def _end_attempt(state: State, live: Live, event: events.AttemptEnded, time_s: float) -> State:
    # Only a newer checkpoint is progress: steps that a failure takes back would let an attempt repeat for ever.
    # A service without a trainer writes no checkpoints, so the time that it served counts as its progress.
    served_long = live.serves_only and live.ready_s is not None and time_s - live.ready_s >= SERVED_S
    fruitful = event.newest_complete > state.best_complete or served_long
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
    state = evolve(
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
    return fold_commands.end_attempt(state)


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
