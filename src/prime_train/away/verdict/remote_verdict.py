"""Judges from outside whether a run lives, from its readings. Pure: no clock, no I/O.

Only times of one clock are subtracted, except for the age of a heartbeat, which is checked against its own movement
between two polls.

Source of the limits: docs/step_times.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prime_train.away.verdict.remote_reading import RemoteReading, find_before, measure_still_s
from prime_train.core.errors import ExitCode
from prime_train.core.units import format_seconds

Verdict = Literal["alive", "slow", "stalled", "crashed", "finished", "unknown"]
PAGE = "docs/step_times.md"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the config promises. Unknown values are read from the run's own history."""

    max_steps: int | None = None
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class VerdictLimits:
    """Times in seconds; each has its reason in docs/step_times.md."""

    fresh_s: float = 15 * 60  # a heartbeat of this age is no sign of trouble; W&B sends one every 30 s
    apart_s: float = 45.0  # between two polls that agree, so that a live run has sent a heartbeat in between
    alarm_s: float = 45 * 60  # metrics arrive at W&B up to 30 min late
    alarm_steps: float = 5.0  # and no alarm before so many expected steps
    busy_alarm_s: float = 90 * 60  # busy GPUs: evaluations and warm-ups of a server (4,200 s) end before
    start_s: float = 75 * 60  # before the first step: images, downloads, compilers, servers
    pause_s: float = 10 * 60  # checkpoints and evaluations between two steps
    slow_factor: float = 3.0
    gone_s: float = 24 * 3600  # no network loss lasts longer, but it still takes a look to be sure
    clock_s: float = 120.0  # a heartbeat from the future shows that the poller's clock is wrong
    busy_ratio: float = 0.05  # below, GPUs do nothing


LIMITS = VerdictLimits()


@dataclass(frozen=True, slots=True)
class RemoteVerdict:
    """`resumable`: another start would continue the run and cannot meet a live one. `step`: the newest known."""

    verdict: Verdict
    why: str
    resumable: bool
    step: int | None
    fix: str = ""
    max_steps: int | None = None
    is_complete: bool = False  # it made all its steps, as far as their number is known

    @property
    def exit_code(self) -> ExitCode:
        """Documented in `prime-train status --help`."""
        match self.verdict:
            case "alive":
                return ExitCode.OK
            case "slow" | "stalled":
                return ExitCode.FINDINGS
            case "unknown":
                return ExitCode.OUT_OF_REACH
            case "finished":
                return ExitCode.OK if self.is_complete else ExitCode.RUN_FAILED
        return ExitCode.RESUMABLE if self.resumable else ExitCode.RUN_FAILED


def judge(
    readings: Sequence[RemoteReading], expectation: Expectation = Expectation(), limits: VerdictLimits = LIMITS
) -> RemoteVerdict:
    """The verdict on a run from its readings, oldest first. A bad verdict needs two readings that agree."""
    if not readings:
        return RemoteVerdict("unknown", "the run was not looked at", False, None)
    newest = readings[-1]
    if newest.problem:
        return _judge_problem(readings)
    readable = [reading for reading in readings if not reading.problem]
    return _Judgement(readable, expectation, limits).verdict()


def _judge_problem(readings: Sequence[RemoteReading]) -> RemoteVerdict:
    newest = readings[-1]
    why, fix = newest.explain_problem()
    known = next((reading.step for reading in reversed(readings) if reading.step is not None), None)
    return RemoteVerdict("unknown", why, False, known, fix)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """One judgement over the readable readings, oldest first."""

    readings: Sequence[RemoteReading]
    expectation: Expectation
    limits: VerdictLimits

    @property
    def newest(self) -> RemoteReading:
        return self.readings[-1]

    @property
    def before(self) -> RemoteReading | None:
        """The reading of an earlier poll that counts beside the newest one."""
        return find_before(self.readings, self.limits.apart_s)

    @property
    def max_steps(self) -> int | None:
        return self.expectation.max_steps or self.newest.max_steps

    @property
    def step_s(self) -> float | None:
        return self.expectation.step_s or self.newest.step_s

    def verdict(self) -> RemoteVerdict:
        match self.newest.state:
            case "finished":
                return self._finished()
            case "killed":
                why = "a person killed it, so it must not continue by itself"
                return self._result("crashed", why, fix="start it again by hand if that was a mistake")
            case "failed" | "preempted":
                return self._ended()
            case "running" | "crashed" | "preempting":
                return self._running()
            case "pending":
                why = "W&B has the run as scheduled; it has not started"
                return self._result("unknown", why, fix="look again later")
            case other:
                return self._result("unknown", f"W&B reports the state {other!r}, which has no meaning here")

    def _result(self, verdict: Verdict, why: str, *, resumable: bool = False, fix: str = "") -> RemoteVerdict:
        complete = verdict == "finished" and self._made_all_steps()
        return RemoteVerdict(verdict, why, resumable, self.newest.step, fix, self.max_steps, complete)

    def _made_all_steps(self) -> bool:
        """Whether the last logged row is the last of the run: steps may count from 0, and not each one is logged."""
        last = self.max_steps
        return last is None or (self.newest.step or 0) + self.newest.log_every_steps >= last

    def _finished(self) -> RemoteVerdict:
        step, last = self.newest.step or 0, self.max_steps
        if last is None or self._made_all_steps():
            return self._result("finished", f"it reported its end at step {step:,}")
        why = f"it ended without an error at step {step:,} of {last:,}"
        return self._result("finished", why, fix="find out who or what ended it before it is started again")

    def _ended(self) -> RemoteVerdict:
        """The run reported its end with an error: this needs no witness, but a second poll."""
        newest = self.newest
        if not any(reading.state == newest.state for reading in self.readings[:-1]):
            return self._result("unknown", f"W&B reports {newest.state!r} for the first time", fix="look again")
        if newest.job == "lives":
            why = f"W&B reports {newest.state!r}, but the cloud runs its job"
            return self._result("unknown", why, fix=_LOOK)
        if newest.state == "preempted":
            return self._result("crashed", "it reported that its machine was taken away", resumable=True, fix=_RESUME)
        if newest.exit_code is None:
            why = "it ended with an error, and W&B does not hold the cause"
            return self._result("crashed", why, fix="read its log before it is started again: prime-train diagnose LOG")
        cause = f" ({newest.cause_class})" if newest.cause_class else ""
        why = f"it ended with exit code {newest.exit_code}{cause}"
        if newest.exit_code in _CONTINUES or (newest.exit_code, newest.cause_class) in _CONTINUES_ELSEWHERE:
            return self._result("crashed", why, resumable=True, fix=_RESUME)
        return self._result("crashed", why, fix="correct the cause first: another start would fail in the same way")

    def _running(self) -> RemoteVerdict:
        newest, limits = self.newest, self.limits
        if newest.run_dir_s is not None and newest.observed_s - newest.run_dir_s < limits.fresh_s:
            return self._moving("its run directory is being written")
        if self._keeps_up():
            return self._stepping()
        if newest.heartbeat_s is None:
            return self._result("unknown", "W&B has no heartbeat of the run", fix="look again later")
        age_s = newest.observed_s - newest.heartbeat_s
        if age_s < -limits.clock_s:
            why = f"the newest heartbeat is {format_seconds(-age_s)} in the future and does not move"
            return self._result("unknown", why, fix="set the clock of the machine that asks")
        if age_s <= limits.fresh_s and newest.state != "crashed":
            return self._stepping()
        return self._silent(age_s)

    def _keeps_up(self) -> bool:
        """The heartbeat moved with the time between two polls, so the run lived at the second one."""
        before = self.before
        if before is None or self.newest.heartbeat_s is None or before.heartbeat_s is None:
            return False
        moved_s = self.newest.heartbeat_s - before.heartbeat_s
        between_s = self.newest.observed_s - before.observed_s
        return moved_s >= between_s - min(self.limits.fresh_s, between_s / 2)

    def _silent(self, age_s: float) -> RemoteVerdict:
        """No heartbeat: the run is dead, or its network is. Only another witness knows the difference."""
        newest, limits = self.newest, self.limits
        silent = f"W&B has received nothing for {format_seconds(age_s)}"
        if age_s < limits.alarm_s:
            return self._result("unknown", f"{silent}; it counts from 45 min on", fix="look again later")
        if self.before is None or self.before.heartbeat_s != newest.heartbeat_s:
            return self._result("unknown", f"{silent}; a second poll must agree", fix="look again in a minute or later")
        stale = newest.run_dir_s is not None and newest.observed_s - newest.run_dir_s >= limits.alarm_s
        if newest.job == "ended":
            return self._result("crashed", f"{silent}, and the cloud has ended its job", resumable=True, fix=_RESUME)
        if newest.job == "lives":
            if stale:
                why = f"{silent}, its run directory is as old, and the cloud still runs its job"
                return self._result("stalled", why, fix=_LOOK)
            why = f"{silent}, but the cloud runs its job; a lost network looks the same"
            return self._result("unknown", why, fix=_LOOK)
        if stale:
            why = f"{silent}, and its run directory has not changed for as long"
            return self._result("crashed", why, resumable=True, fix=_RESUME)
        if age_s >= limits.gone_s:
            return self._result("crashed", f"{silent}; nothing else was asked", fix=_SECOND)
        return self._result("unknown", f"{silent}; a dead run and a lost network look the same from there", fix=_SECOND)

    def _stepping(self) -> RemoteVerdict:
        """The process lives. Does it make steps?"""
        still_s, newest, limits = measure_still_s(self.readings), self.newest, self.limits
        if newest.step is None:
            return self._starting()
        alarm_s = max(limits.alarm_s, limits.alarm_steps * (self.step_s or 0.0))
        if still_s < alarm_s:
            unseen_s = newest.observed_s - (newest.last_step_s or newest.observed_s)
            if newest.system_metrics_s is None and unseen_s >= alarm_s:
                why = f"it is connected; its newest metrics are {format_seconds(unseen_s)} old by its own clock"
                return self._result("unknown", f"{why}, and nothing else can be asked", fix=_SECOND)
            return self._moving(f"it sent a heartbeat, step {newest.step:,}")
        return self._still(still_s, f"no step after {newest.step:,} for {format_seconds(still_s)}")

    def _starting(self) -> RemoteVerdict:
        newest, limits = self.newest, self.limits
        age_s = (newest.heartbeat_s or newest.observed_s) - (newest.created_s or newest.observed_s)
        if age_s < limits.start_s:
            return self._result("alive", f"it is starting for {format_seconds(age_s)}; no step yet")
        return self._still(age_s, f"no step since its start {format_seconds(age_s)} ago")

    def _still(self, still_s: float, what: str) -> RemoteVerdict:
        """A live process without steps for longer than metrics are late: stalled, if a second witness agrees."""
        newest, limits = self.newest, self.limits
        if self.before is None or self.before.step != newest.step:
            return self._result("unknown", f"{what}; a second poll must agree", fix="look again in a minute or later")
        if newest.system_metrics_s is None and newest.run_dir_s is None:
            why = f"{what}, and neither system metrics nor the run directory can be asked"
            return self._result("unknown", why, fix=_SECOND)
        if newest.gpu_busy is not None and newest.gpu_busy >= limits.busy_ratio:
            busy_s = max(limits.busy_alarm_s, 2 * limits.alarm_steps * (self.step_s or 0.0))
            if still_s < busy_s:
                why = f"{what}, but its GPUs are {newest.gpu_busy:.0%} busy: an evaluation or a warm-up takes as long"
                return self._result("slow", why, fix=f"see {PAGE}")
            return self._result("stalled", f"{what}; busy GPUs may wait for a collective that never ends", fix=_LOOK)
        witness = "its GPUs are idle" if newest.gpu_busy is not None else "later values of the machine did arrive"
        return self._result("stalled", f"{what}, and {witness}", fix=_LOOK)

    def _moving(self, why: str) -> RemoteVerdict:
        """A run that lives: slow where its steps take several times as long as expected."""
        slow = self._slowness()
        return self._result("slow", slow, fix=f"see {PAGE}") if slow else self._result("alive", why)

    def _slowness(self) -> str:
        expected_s, newest, before = self.step_s, self.newest, self.before
        if not expected_s or newest.step is None:
            return ""
        factor, pause_s = self.limits.slow_factor, self.limits.pause_s
        if self.expectation.step_s and newest.step_s and newest.step_s > factor * self.expectation.step_s:
            return f"a step takes {format_seconds(newest.step_s)}, expected were {format_seconds(expected_s)}"
        if before is None or before.step is None or before.last_step_s is None or newest.last_step_s is None:
            return ""
        steps, took_s = newest.step - before.step, newest.last_step_s - before.last_step_s
        if steps > 0 and took_s > factor * steps * expected_s + pause_s:
            return f"{steps:,} steps took {format_seconds(took_s)}, expected were {format_seconds(steps * expected_s)}"
        return ""


# Exit codes of prime-train after which the same command continues. 255: its supervisor was killed.
_CONTINUES = frozenset({int(ExitCode.RESUMABLE), 255})
# Attempts were spent on a machine that is broken: another one may be whole.
_CONTINUES_ELSEWHERE = frozenset({(int(ExitCode.RETRIES_SPENT), "hardware")})
_RESUME = "continue it with the command that started it"
_LOOK = "look at the machine: prime-train status and logs there; nothing may be started beside a live run"
_SECOND = "ask a second witness: --run-dir PATH, or the queue of the cloud"
