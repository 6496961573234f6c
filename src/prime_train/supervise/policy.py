"""Decides what the supervisor does next, from the state and the time alone. Pure: it acts on nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prime_train.core.errors import ExitCode
from prime_train.spec import RunSpec
from prime_train.supervise.actions import (
    Action,
    AskStop,
    Close,
    FindHang,
    GiveUp,
    KeepEvidence,
    Launch,
    LeaveOut,
    Nothing,
    Pause,
    Shrink,
    Signal,
    StartRole,
    Suspect,
    Wait,
)
from prime_train.supervise.exit_signals import OOM_KILLER
from prime_train.supervise.launch.program import Program
from prime_train.supervise.state import Attempt, Doom, Live, State
from prime_train.supervise.watches.disk.messages import NO_ROOM, REFUSES
from prime_train.supervise.watches.hang import silence_limits

# Where no signature says otherwise. "oom": the same step needs the same memory again.
NEVER_RETRIED = frozenset({"config", "auth", "bug", "disk", "env", "oom"})
UNSAVABLE = frozenset({NO_ROOM, REFUSES})  # alarms with which no save is to be asked for
_LOOK_AGAIN_S = 60.0
SUSPECT_S = 7.0  # before a deadline: what the processes do takes some seconds to see


@dataclass(frozen=True, slots=True)
class Policy:
    """How long to wait, and how often to try. The last three are not for the user to set."""

    max_fruitless_attempts: int = 3
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    startup_limit_s: float = 900.0
    step_limit_s: float | None = None  # None = learned from the steps that were taken
    slow_phase_limit_s: float = 1800.0
    stop_grace_s: float = 60.0
    term_grace_s: float = 5.0  # between SIGTERM and SIGKILL; the grace for a checkpoint has passed by then
    dump_grace_s: float = 2.0  # between SIGABRT, on which faulthandler writes every stack to the log, and SIGKILL
    kill_limit_s: float = (
        30.0  # between SIGKILL and the end of the wait for an exit: who waits in the kernel never ends
    )
    exit_grace_s: float = 30.0  # between the trainer's last word and the end of its processes, as torchrun allows
    evidence_limit_s: float = 20.0  # for what is written down of an attempt before it is ended
    ends_hangs: bool = True
    reports: bool = True  # the trainer speaks of its phases from the start
    stops_by_file: bool = True  # the trainer looks for a request to stop; else SIGTERM is all it hears
    micro_batches: tuple[int, ...] = ()  # smaller ones that may be tried where memory ran out, largest first


def policy(run: RunSpec, program: Program) -> Policy:
    """The policy that a config asks for, as far as its program can follow it."""
    asked = run.prime_train
    return Policy(
        stops_by_file=program.stops_by_file,
        ends_hangs=asked.watch.hang == "restart",
        reports=program.reports,
        micro_batches=smaller_micro_batches(run) if asked.recovery.on_oom == "shrink" and program.shrinks else (),
        max_fruitless_attempts=asked.restart.max_fruitless_attempts,
        backoff_s=asked.restart.backoff_s,
        backoff_max_s=asked.restart.backoff_max_s,
        startup_limit_s=asked.heartbeat.startup_limit_s,
        step_limit_s=asked.heartbeat.step_limit_s,
        slow_phase_limit_s=asked.heartbeat.slow_phase_limit_s,
        stop_grace_s=asked.stop_grace_s,
    )


def smaller_micro_batches(run: RunSpec) -> tuple[int, ...]:
    """Micro-batches below the config's that make the same global batch, each at most half of the one before."""
    of_one_process = run.global_batch // run.parallel.processes
    found: list[int] = []
    most = run.batch.micro_batch // 2
    for size in range(most, 0, -1):
        if size <= most and of_one_process % size == 0:
            found.append(size)
            most = size // 2
    return tuple(found)


def decide(state: State, policy: Policy, now_s: float) -> Action:
    """What to do at `now_s`, on the clock that stamps the events."""
    if state.closed:
        return Nothing()
    if state.live is not None:
        return _watch(state, state.live, policy, now_s)
    return _next(state, policy, now_s)


# --- between attempts ------------------------------------------------------------------------------


def _next(state: State, policy: Policy, now_s: float) -> Action:
    attempt = state.attempt
    if attempt is None or not state.launched:
        if state.stop_asked_s is not None:
            return Close("stopped", ExitCode.RESUMABLE, f"{state.stop_by} before the trainer was started")
        return Launch(state.attempt_number + 1)
    if attempt.outcome == "finished":
        return Close("finished", ExitCode.OK, f"step {attempt.last_step} of {state.max_steps}")
    smaller = _smaller_micro_batch(attempt, state, policy)
    if smaller is not None:
        return Shrink(attempt.number, smaller)
    if attempt.outcome == "failed" and _fails_again(attempt, state):
        return Close("failed", ExitCode.RUN_FAILED, f"{attempt.what}; another try would fail the same way")
    if state.stop_asked_s is not None:
        return Close("stopped", ExitCode.RESUMABLE, f"{state.stop_by}; newest checkpoint {_step(state)}")
    if attempt.outcome == "stopped":
        reason = f"the trainer was told to stop by another process; newest checkpoint {_step(state)}"
        return Close("stopped", ExitCode.RESUMABLE, reason)
    if state.fruitless >= policy.max_fruitless_attempts:
        reason = f"{state.fruitless} attempts in a row without a new complete checkpoint; the last one: {attempt.what}"
        return Close("failed", ExitCode.RETRIES_SPENT, reason)
    spent = _spent_gpu(state)
    if spent is not None:
        return LeaveOut(spent, f"{_GPU_FAILURES} attempts were ended for it")
    assert attempt.ended_s is not None, "an attempt that is not live has ended"
    until_s = attempt.ended_s + backoff_s(state.fruitless, policy)
    return Wait(until_s) if now_s < until_s else Launch(attempt.number + 1)


def _fails_again(attempt: Attempt, state: State) -> bool:
    """Another try would end the same way. One that could not load its checkpoint gets another one next time."""
    if attempt.resume_step in state.unreadable or state.shrunk_after == attempt.number:
        return False
    if attempt.retry:
        return attempt.retry != "yes"
    if attempt.cause_id == OOM_KILLER and attempt.fruitful:  # a fresh process has not grown yet
        return False
    return attempt.cause_class in NEVER_RETRIED


def _smaller_micro_batch(attempt: Attempt, state: State, policy: Policy) -> int | None:
    """The next smaller micro-batch, where memory ran out and that was not answered yet."""
    if attempt.outcome != "failed" or attempt.cause_class != "oom" or state.shrunk_after == attempt.number:
        return None
    return next((size for size in policy.micro_batches if state.micro_batch is None or size < state.micro_batch), None)


_GPU_FAILURES = 2


def _spent_gpu(state: State) -> str | None:
    """A GPU for which two attempts were ended, and that is still in use."""
    counts = Counter(gpu for gpu, _ in state.gpu_failures)
    return next((gpu for gpu, n in sorted(counts.items()) if n >= _GPU_FAILURES and gpu not in state.left_out), None)


def backoff_s(fruitless: int, policy: Policy) -> float:
    """Seconds to wait before the next attempt: doubles with every attempt that brought nothing."""
    doublings = min(max(0, fruitless - 1), 30)
    return float(min(policy.backoff_s * 2**doublings, policy.backoff_max_s))


def _step(state: State) -> str:
    return f"step {state.newest_complete}" if state.newest_complete else "none"


# --- while an attempt lives ------------------------------------------------------------------------


def _watch(state: State, live: Live, policy: Policy, now_s: float) -> Action:
    """The most urgent of: an end that must be, a last word, a stop that was asked, the next start, silence."""
    if not live.children and (live.doom is not None or state.stop_asked_s is not None):
        return GiveUp(live.number)  # nothing runs that could be signalled, or end
    if live.doom is not None:
        return _end_doomed(live, live.doom, policy, now_s)
    if live.word is not None:
        return _end_lingering(live, policy, now_s)
    pauses = [standing.alarm for standing in state.alarms if standing.alarm.answer == "pause"]
    unsavable = next((alarm for alarm in pauses if alarm.name in UNSAVABLE), None)
    if unsavable is not None and state.stop_saves:
        return Pause(unsavable.what, saves=False)
    if state.stop_asked_s is not None:
        return _stop(state, live, policy, now_s)
    if pauses:
        return Pause(pauses[0].what, saves=True)
    if live.next_role is not None:
        return StartRole(live.number, live.next_role)
    if not policy.ends_hangs or live.serves_only or not live.all_started:
        return Wait(now_s + _LOOK_AGAIN_S)  # services have no steps: readiness and the engine watch judge them
    limit_s = silence_limit_s(state, live, policy)
    deadline_s = max(live.last_sign_s + limit_s, live.excused_until_s)
    if now_s < deadline_s - SUSPECT_S:
        return Wait(deadline_s - SUSPECT_S)
    if now_s < deadline_s:
        return Suspect(live.number, deadline_s)
    until_s = silence_limits.compute_recheck_s(live.last_sign_s, limit_s, now_s)
    return FindHang(live.number, now_s - live.last_sign_s, limit_s, live.phase, until_s)


def silence_limit_s(state: State, live: Live, policy: Policy) -> float:
    """How long the attempt may be silent in the phase it is in."""
    limits = silence_limits.Limits(
        policy.startup_limit_s, policy.step_limit_s, policy.slow_phase_limit_s, policy.reports
    )
    return silence_limits.compute_limit_s(state.learned, live.phase, limits)


def _end_doomed(live: Live, doom: Doom, policy: Policy, now_s: float) -> Action:
    """Evidence first, then the stacks, then the end."""
    if not doom.evidence and now_s < doom.since_s + policy.evidence_limit_s:
        return KeepEvidence(live.number)
    dumped_s = _sent_s(live, "SIGABRT")
    if dumped_s is None:
        return Signal(live.number, "SIGABRT", f"{doom.reason}; stacks go to the log")
    return _kill_after(live, policy, dumped_s + policy.dump_grace_s, now_s, doom.reason)


def _end_lingering(live: Live, policy: Policy, now_s: float) -> Action:
    assert live.word is not None
    reason = f"it said that it had {live.word.said} and did not end"
    return _kill_after(live, policy, live.word.time_s + policy.exit_grace_s, now_s, reason)


def _stop(state: State, live: Live, policy: Policy, now_s: float) -> Action:
    assert state.stop_asked_s is not None
    if not state.stop_saves:
        return _kill_after(live, policy, now_s, now_s, state.stop_by)
    if not policy.stops_by_file or not live.all_started:  # who would look for the file does not, or is not there
        asked_s = _sent_s(live, "SIGTERM")
        if asked_s is None:
            return Signal(live.number, "SIGTERM", state.stop_by, roots=True)
        in_haste = state.stop_hurried or not live.all_started
        grace_s = policy.term_grace_s if in_haste else policy.stop_grace_s
        return _kill_after(live, policy, asked_s + grace_s, now_s, f"it did not end within {grace_s:g} s")
    if _sent_s(live, "stop_requested") is None:
        return AskStop(live.number, state.stop_by)
    if not state.stop_hurried and now_s < state.stop_asked_s + policy.stop_grace_s:
        return Wait(state.stop_asked_s + policy.stop_grace_s)
    reason = "asked again" if state.stop_hurried else f"it did not stop within {policy.stop_grace_s:g} s"
    terminated_s = _sent_s(live, "SIGTERM")
    if terminated_s is None:
        return Signal(live.number, "SIGTERM", reason)
    return _kill_after(live, policy, terminated_s + policy.term_grace_s, now_s, reason)


def _kill_after(live: Live, policy: Policy, deadline_s: float, now_s: float, reason: str) -> Action:
    """SIGKILL once `deadline_s` has come; after it there is the exit to wait for, and that not for ever."""
    killed_s = _sent_s(live, "SIGKILL")
    if killed_s is not None:
        give_up_s = killed_s + policy.kill_limit_s
        return Wait(give_up_s) if now_s < give_up_s else GiveUp(live.number)
    return Wait(deadline_s) if now_s < deadline_s else Signal(live.number, "SIGKILL", reason)


def _sent_s(live: Live, signal: str) -> float | None:
    return next((sent.time_s for sent in live.sent if sent.signal == signal), None)
