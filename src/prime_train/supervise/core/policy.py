"""Decides the next action of the supervisor from the state and the time. Pure: it changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from prime_train.core.errors import ExitCode
from prime_train.events.bounds import MOST_ATTEMPTS
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch
from prime_train.spec.supervision import Heartbeat
from prime_train.supervise.core import actions
from prime_train.supervise.core.actions import Action
from prime_train.supervise.core.command_answers import awaits_test, find_answer, find_unsent_save, find_unsent_test
from prime_train.supervise.core.state import AttemptState, Live, PendingKill, State
from prime_train.supervise.evidence.diagnose import OOM_KILLER
from prime_train.supervise.launch.program import Program
from prime_train.supervise.watches.hang import silence_limits

# Unless the signature advises a retry. "oom": the same step needs the same memory again.
NEVER_RETRIED = frozenset({"config", "data", "auth", "bug", "disk", "env", "oom"})
_IDLE_WAIT_S = 60.0
SAVE_FACTOR = 1.2  # saves to a network disk vary
_REPLICAS_FACTOR = 4.0
SUSPECT_S = 7.0  # before the deadline, because the check of what the processes do takes some seconds


@dataclass(frozen=True, slots=True)
class Policy:
    """Time limits and the number of attempts."""

    max_fruitless_attempts: int = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    startup_limit_s: float = 900.0
    step_limit_s: float | None = None  # None = learned from the steps of the run
    slow_phase_limit_s: float = 1800.0
    stop_grace_s: float = 60.0
    term_grace_s: float = 5.0  # between SIGTERM and SIGKILL; the grace for a checkpoint has passed by then
    dump_grace_s: float = 2.0  # between SIGABRT, on which faulthandler writes every stack to the log, and SIGKILL
    kill_limit_s: float = 30.0  # between SIGKILL and giving up; a process that waits in the kernel never ends
    # Between the trainer's last event and the end of its processes: torchrun gives the other ranks 30 s, and only then
    # writes which of them was killed.
    exit_grace_s: float = 45.0
    leave_margin_s: float = 5.0  # before a machine goes away, for the end of its processes and of a copy elsewhere
    evidence_limit_s: float = 20.0  # for the evidence that is written before an attempt is ended
    ends_hangs: bool = True
    reports: bool = True  # the trainer writes events of its phases from the start
    stops_by_file: bool = True  # the trainer looks for the file of a stop request; otherwise it gets `stop_signal`
    stop_signal: str = "SIGTERM"
    stops_workers: bool = False  # that signal goes to the training processes, not to their launcher
    stops_after_save: bool = False  # it saves nothing on request: the signal waits for the next checkpoint
    is_mute: bool = False  # no step of the trainer is known
    silence_floor_s: float = silence_limits.FLOOR_S  # of a limit that is learned
    micro_batches: tuple[int, ...] = ()  # smaller ones to try when memory runs out, largest first
    silence_factor: float = 1.0  # of a step limit that is set


def build_policy(run: RunSpec, program: Program) -> Policy:
    """The policy of a config, within the abilities of its program."""
    settings = run.prime_train
    shrinks = settings.recovery.on_oom == "shrink" and program.shrinks
    # The launcher of replicas ends the one that hangs, and the others need some seconds to go on.
    silence_factor = _REPLICAS_FACTOR if run.parallel.replicas else 1.0
    return Policy(
        stops_by_file=program.stops_by_file,
        stop_signal=program.stop_signal,
        stops_workers=program.stops_workers,
        stops_after_save=program.stops_after_save,
        is_mute=program.is_mute,
        ends_hangs=settings.watch.hang == "restart",
        reports=program.reports,
        micro_batches=list_smaller_micro_batches(run) if shrinks else (),
        max_fruitless_attempts=settings.restart.max_fruitless_attempts,
        backoff_s=settings.restart.backoff_s,
        backoff_max_s=settings.restart.backoff_max_s,
        startup_limit_s=settings.heartbeat.startup_limit_s,
        step_limit_s=_scale_limit(settings.heartbeat, silence_factor),
        silence_factor=silence_factor,
        slow_phase_limit_s=settings.heartbeat.slow_phase_limit_s,
        silence_floor_s=silence_limits.FLOOR_S if run.parallel.machines == 1 else silence_limits.SEVERAL_FLOOR_S,
        stop_grace_s=settings.stop_grace_s,
    )


def change_limits(policy: Policy, heartbeat: Heartbeat) -> Policy:
    """The policy with the limits on silence from a config that has changed."""
    return replace(
        policy,
        startup_limit_s=heartbeat.startup_limit_s,
        step_limit_s=_scale_limit(heartbeat, policy.silence_factor),
        slow_phase_limit_s=heartbeat.slow_phase_limit_s,
    )


def _scale_limit(heartbeat: Heartbeat, factor: float) -> float | None:
    return None if heartbeat.step_limit_s is None else heartbeat.step_limit_s * factor


def list_smaller_micro_batches(run: RunSpec) -> tuple[int, ...]:
    """Smaller micro-batches with the same global batch, each at most half of the one before."""
    batch_per_process = global_batch(run) // run.parallel.processes
    found: list[int] = []
    most = run.batch.micro_batch // 2
    for size in range(most, 0, -1):
        if size <= most and batch_per_process % size == 0:
            found.append(size)
            most = size // 2
    return tuple(found)


def decide(state: State, policy: Policy, now_s: float) -> Action:
    """The action at `now_s`, on the clock that stamps the events."""
    if state.closed:
        return actions.Nothing()
    if (answer := find_answer(state)) is not None:
        return actions.AnswerCommand(answer)
    if (test := find_unsent_test(state)) is not None:
        return actions.StartGpuTest(test.accepted.request_id, test.accepted.gpus)
    if state.live is not None:
        return _decide_live(state, state.live, policy, now_s)
    action = _leave(state, policy, now_s) or _decide_next_attempt(state, policy, now_s)
    if isinstance(action, actions.PlanLaunch) and awaits_test(state):
        return actions.Wait(now_s + _IDLE_WAIT_S)
    return action


def _leave(state: State, policy: Policy, now_s: float) -> Action | None:
    """Stop for a machine that goes away, with a save if it would be complete in time; None if nothing is to do.

    A save that has begun may complete until the last moment, even if earlier saves took longer.
    """
    until_s = find_last_save_s(state, policy)
    if until_s is None:
        return None
    what = next(active.alarm.what for active in state.alarms if active.alarm.answer == "leave")
    if state.live is None:
        return actions.Pause(what, saves=True) if state.stop_requested_s is None else None
    if not state.stop_saves:
        return None
    if now_s >= until_s:
        return actions.Pause(f"{what}; no time is left to save", saves=False)
    if state.stop_requested_s is not None:
        return None
    needs_s = estimate_save_s(state)
    if state.saving_step is not None or now_s + needs_s <= until_s:
        return actions.Pause(what, saves=True)
    return actions.Pause(f"{what}; a save takes {needs_s:.0f} s and {until_s - now_s:.0f} s are left", saves=False)


def find_last_save_s(state: State, policy: Policy) -> float | None:
    """When the last save must be complete, because the machine goes away; None if it stays."""
    return None if state.leaves_s is None else state.leaves_s - policy.leave_margin_s


def estimate_save_s(state: State) -> float:
    """Seconds from a stop request to a complete checkpoint: the rest of a step, and the longest of the latest saves.

    0 before the first save: then a try costs nothing.
    """
    return SAVE_FACTOR * max(state.saves_s) + state.learned.largest_gap_s if state.saves_s else 0.0


def _decide_next_attempt(state: State, policy: Policy, now_s: float) -> Action:
    attempt = state.attempt
    if attempt is None or not state.launched:
        if state.stop_requested_s is not None:
            return actions.Close("stopped", ExitCode.RESUMABLE, f"{state.stop_by} before the trainer was started")
        return _pause(state, now_s) or _launch_after(state.attempt_number)
    # An attempt that has finished wins over every request, except one to go back: there is nothing else left to do.
    if attempt.outcome == "finished" and not state.go_back_to:
        reached = f"step {attempt.last_step}" + ("" if state.is_endless else f" of {state.max_steps}")
        return actions.Close("finished", ExitCode.OK, attempt.what or reached)
    # Before the question whether it would fail again: out of memory does, unless the micro-batch shrinks.
    smaller = _find_smaller_micro_batch(attempt, state, policy)
    if smaller is not None:
        return actions.Shrink(attempt.number, smaller)
    if attempt.outcome == "failed" and not state.go_back_to and _would_fail_again(attempt, state):
        return actions.Close("failed", ExitCode.RUN_FAILED, f"{attempt.what}; another try would fail the same way")
    if state.halt is not None:
        return _pause(state, now_s) or _launch_after(attempt.number)
    if state.stop_requested_s is not None or attempt.outcome == "stopped":
        by = "another process stopped the trainer" if state.stop_requested_s is None else state.stop_by
        newest = f"step {state.newest_complete}" if state.newest_complete else "none"
        return actions.Close("stopped", ExitCode.RESUMABLE, f"{by}; newest checkpoint {newest}")
    # After the stop, so that a user who stops a failing run gets the exit code that resumes it.
    if state.fruitless >= policy.max_fruitless_attempts:
        reason = f"{state.fruitless} attempts in a row without a new complete checkpoint; the last one: {attempt.what}"
        return actions.Close("failed", ExitCode.RETRIES_SPENT, reason)
    failing_gpu = _find_failing_gpu(state)
    if failing_gpu is not None:
        return actions.LeaveOut(failing_gpu, f"{_GPU_FAILURES} attempts were ended for it")
    assert attempt.ended_s is not None, "an attempt that is not live has ended"
    until_s = attempt.ended_s + compute_backoff_s(state.fruitless, policy)
    return actions.Wait(until_s) if now_s < until_s else _launch_after(attempt.number)


def _pause(state: State, now_s: float) -> Action | None:
    """Wait for a person while the run is paused; None if it is not."""
    return actions.Wait(now_s + _IDLE_WAIT_S) if state.is_paused else None


def _launch_after(number: int) -> Action:
    # Readers refuse a higher number, so a launch with it would be repeated for ever.
    if number >= MOST_ATTEMPTS:
        what = f"the events name attempt {number:,}, after which a run can have no other"
        return actions.Close("failed", ExitCode.RUN_FAILED, f"{what}; start another run with --run-name")
    return actions.PlanLaunch(number + 1)


def _would_fail_again(attempt: AttemptState, state: State) -> bool:
    """Whether another attempt would end the same way. After a failed load the next one takes another checkpoint."""
    if attempt.resume_step in state.unreadable or state.shrunk_after == attempt.number:
        return False
    if attempt.retry:
        return attempt.retry != "yes"
    if attempt.cause_id == OOM_KILLER and attempt.fruitful:  # a new process starts with little memory
        return False
    return attempt.cause_class in NEVER_RETRIED


def _find_smaller_micro_batch(attempt: AttemptState, state: State, policy: Policy) -> int | None:
    """The next smaller micro-batch, if memory ran out in this attempt and no smaller one is chosen for it yet."""
    if attempt.outcome != "failed" or attempt.cause_class != "oom" or state.shrunk_after == attempt.number:
        return None
    return next((size for size in policy.micro_batches if state.micro_batch is None or size < state.micro_batch), None)


_GPU_FAILURES = 2


def _find_failing_gpu(state: State) -> str | None:
    """A GPU that ended two attempts and is still in use."""
    counts = Counter(gpu for gpu, _ in state.gpu_failures)
    return next((gpu for gpu, n in sorted(counts.items()) if n >= _GPU_FAILURES and gpu not in state.left_out), None)


def compute_backoff_s(fruitless: int, policy: Policy) -> float:
    """Seconds to wait before the next attempt; they double with every attempt without progress."""
    doublings = min(max(0, fruitless - 1), 30)
    return float(min(policy.backoff_s * 2**doublings, policy.backoff_max_s))


def _decide_live(state: State, live: Live, policy: Policy, now_s: float) -> Action:
    """In this order: a pending kill, an exit the trainer reported, a requested stop, the next start, silence."""
    if not live.children and (live.pending_kill is not None or state.stop_requested_s is not None):
        return actions.GiveUp(live.number)  # no process is there to signal or to wait for
    if live.pending_kill is not None:
        return _kill_with_evidence(live, live.pending_kill, policy, now_s)
    if live.trainer_exit is not None:
        return _end_after_exit(live, policy, now_s)
    # An alarm that forbids a save comes before a stop, because a stop would wait for a save that cannot succeed.
    pauses = [active.alarm for active in state.alarms if active.alarm.answer == "pause"]
    unsavable = next((alarm for alarm in pauses if not alarm.savable), None)
    if unsavable is not None and state.stop_saves:
        return actions.Pause(unsavable.what, saves=False)
    if (leaving := _leave(state, policy, now_s)) is not None:
        return leaving
    if state.stop_requested_s is not None:
        return _stop(state, live, policy, now_s)
    if pauses:
        return actions.Pause(pauses[0].what, saves=True)
    if (unsent := find_unsent_save(state, live)) is not None:
        return actions.AskSave(live.number, unsent)
    if live.next_role is not None:
        return actions.StartRole(live.number, live.next_role)
    # Silence has a meaning only while a trainer could report steps.
    if not policy.ends_hangs or live.serves_only or not live.all_started:
        return actions.Wait(now_s + _IDLE_WAIT_S)  # services have no steps: readiness and the engine watch check them
    limit_s = find_silence_limit_s(state, live, policy)
    deadline_s = max(live.last_sign_s + limit_s, live.excused_until_s)
    if now_s < deadline_s - SUSPECT_S:
        return actions.Wait(deadline_s - SUSPECT_S)
    if now_s < deadline_s:
        return actions.Suspect(live.number, deadline_s)
    until_s = silence_limits.compute_recheck_s(live.last_sign_s, limit_s, now_s)
    if policy.is_mute and not state.learned.steps_seen:
        until_s = now_s + limit_s  # a trainer without readable steps may work for weeks
    return actions.FindHang(live.number, now_s - live.last_sign_s, limit_s, live.phase, until_s)


def find_silence_limit_s(state: State, live: Live, policy: Policy) -> float:
    """How long the attempt may be silent in its present phase."""
    limits = silence_limits.SilenceLimits(
        policy.startup_limit_s,
        policy.step_limit_s,
        policy.slow_phase_limit_s,
        policy.reports,
        policy.is_mute,
        policy.silence_floor_s,
    )
    return silence_limits.compute_limit_s(state.learned, live.phase, limits)


def _kill_with_evidence(live: Live, kill: PendingKill, policy: Policy, now_s: float) -> Action:
    """First the evidence, then SIGABRT for the stacks, then SIGKILL."""
    if not kill.evidence and now_s < kill.since_s + policy.evidence_limit_s:
        return actions.KeepEvidence(live.number)
    dumped_s = _sent_s(live, "SIGABRT")
    if dumped_s is None:
        return actions.Signal(live.number, "SIGABRT", f"{kill.reason}; stacks go to the log")
    return _kill_after(live, policy, dumped_s + policy.dump_grace_s, now_s, kill.reason)


def _end_after_exit(live: Live, policy: Policy, now_s: float) -> Action:
    assert live.trainer_exit is not None
    reason = f"it reported that it had {live.trainer_exit.outcome} and did not end"
    return _kill_after(live, policy, live.trainer_exit.time_s + policy.exit_grace_s, now_s, reason)


def _stop(state: State, live: Live, policy: Policy, now_s: float) -> Action:
    assert state.stop_requested_s is not None
    if not state.stop_saves:
        return _kill_after(live, policy, now_s, now_s, state.stop_by)
    until_s = find_last_save_s(state, policy) or state.stop_requested_s + policy.stop_grace_s
    if not (policy.stops_by_file or live.listens) or not live.all_started:  # then no process looks for the file
        terminated_s = _sent_s(live, policy.stop_signal)
        if terminated_s is None:
            if _awaits_save(state, policy) and now_s < until_s:
                return actions.Wait(until_s)
            workers = policy.stops_workers
            return actions.Signal(live.number, policy.stop_signal, state.stop_by, roots=not workers, workers=workers)
        at_once = state.stop_at_once or not live.all_started
        grace_s = policy.term_grace_s if at_once else policy.stop_grace_s
        return _kill_after(live, policy, terminated_s + grace_s, now_s, f"it did not end within {grace_s:g} s")
    if _sent_s(live, "stop_requested") is None:
        return actions.AskStop(live.number, state.stop_by)
    if not state.stop_at_once and now_s < until_s:
        return actions.Wait(until_s)
    reason = "a second stop request" if state.stop_at_once else f"it did not stop within {policy.stop_grace_s:g} s"
    terminated_s = _sent_s(live, "SIGTERM")
    if terminated_s is None:
        return actions.Signal(live.number, "SIGTERM", reason)
    return _kill_after(live, policy, terminated_s + policy.term_grace_s, now_s, reason)


def _awaits_save(state: State, policy: Policy) -> bool:
    """Whether the trainer saves only by itself, and has saved nothing since the request."""
    assert state.stop_requested_s is not None
    has_saved = state.saved_s is not None and state.saved_s > state.stop_requested_s
    return policy.stops_after_save and not has_saved and not state.stop_at_once


def _kill_after(live: Live, policy: Policy, deadline_s: float, now_s: float, reason: str) -> Action:
    """SIGKILL at `deadline_s`, then a limited wait for the exit."""
    killed_s = _sent_s(live, "SIGKILL")
    if killed_s is not None:
        give_up_s = killed_s + policy.kill_limit_s
        return actions.Wait(give_up_s) if now_s < give_up_s else actions.GiveUp(live.number)
    return actions.Wait(deadline_s) if now_s < deadline_s else actions.Signal(live.number, "SIGKILL", reason)


def _sent_s(live: Live, signal: str) -> float | None:
    return next((sent.time_s for sent in live.sent if sent.signal == signal), None)
