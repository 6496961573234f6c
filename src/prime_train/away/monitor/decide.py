"""Decides whether a run on spot machines is resumed: from its verdict, its managed jobs and earlier polls. Pure.

The monitor is the backstop, not the recovery: SkyPilot recovers from pre-emptions within minutes, and a scheduled
workflow may be hours late. So it acts only where nothing else will, and every doubt is a reason to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from prime_train.away.sky.queue import ENDED
from prime_train.core.units import counted, format_seconds

Verdict = Literal["alive", "slow", "stalled", "crashed", "finished", "unknown"]
Action = Literal["resume", "wait", "give-up", "report"]

_DEAD = frozenset(("stalled", "crashed"))
# Source: sky/jobs/state.py of skypilot 0.14.1, ManagedJobStatus.
_HOPELESS = frozenset(("FAILED_SETUP", "FAILED_PRECHECKS"))  # the next job has the same set-up and the same resources


class MonitoredJob(NamedTuple):
    """A managed job with the name of the run. `recoveries` counts the machines it lost."""

    id: int
    state: str
    recoveries: int

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED


class PollReading(NamedTuple):
    """What one poll sees. `step` is None if it is not known; `jobs` is None if the queue cannot be read."""

    at_s: float
    verdict: Verdict
    why: str
    resumable: bool
    step: int | None
    jobs: tuple[MonitoredJob, ...] | None

    @property
    def live(self) -> MonitoredJob | None:
        return max((job for job in self.jobs or () if job.is_live), default=None, key=lambda job: job.id)

    @property
    def ended(self) -> MonitoredJob | None:
        """The newest job of all, if it has ended."""
        newest = max(self.jobs or (), default=None, key=lambda job: job.id)
        return newest if newest is not None and not newest.is_live else None


class Poll(NamedTuple):
    """What is kept of an earlier poll. `job` is the id of the live job then."""

    at_s: float
    verdict: str
    step: int | None
    job: int | None
    recoveries: int


class BegunResume(NamedTuple):
    """A resume that was begun, whatever came of it. `step` is the highest step known then."""

    number: int
    at_s: float
    step: int


class PollHistory(NamedTuple):
    """Earlier polls and resumes, oldest first. `gave_up` is the reason, if the monitor gave up."""

    polls: tuple[Poll, ...] = ()
    resumes: tuple[BegunResume, ...] = ()
    gave_up: str | None = None


class MonitorLimits(NamedTuple):
    """When the monitor acts. `interval_steps`: steps between checkpoints, because only a newer one is progress."""

    interval_steps: int = 1
    most_fruitless: int = 3  # resumes in a row: [prime_train.restart] max_fruitless_attempts
    # An interruption is no sign of a fault. If 30 % of the machines go before their first save, three in a row happen
    # to most runs of a month, and ten to fewer than one run in a thousand.
    most_lost_machines: int = 10
    apart_s: float = 600.0  # between two polls that agree, so that both do not see the same hiccup
    backoff_s: float = 1800.0  # after a resume; doubles with each one without progress. Metrics come 20-30 min late
    longest_backoff_s: float = 6 * 3600.0
    lag_s: float = 2700.0  # a new step is known at W&B after this time at the latest
    hung_s: float = 6 * 3600.0  # a machine that is paid and trains nothing for so long is given up


class Decision(NamedTuple):
    """The action, its reason, what a person should do, and the live job to cancel. `closes`: the run is over."""

    action: Action
    why: str
    fix: str = ""
    cancel: int | None = None
    closes: bool = False


def find_best_step(history: PollHistory, reading: PollReading | None = None) -> int:
    """The highest step of all polls and resumes; 0 if none is known."""
    steps = [poll.step for poll in history.polls] + [resume.step for resume in history.resumes]
    return max((step for step in (*steps, reading.step if reading else None) if step is not None), default=0)


def record(reading: PollReading) -> Poll:
    """What of a reading is kept for the next polls."""
    live = reading.live
    return Poll(reading.at_s, reading.verdict, reading.step, live.id if live else None, live.recoveries if live else 0)


def count_fruitless(saved: Sequence[int]) -> int:
    """Count the attempts at the end of a history that saved nothing new.

    `saved` is the newest checkpoint after each attempt, in steps or in saves; the first entry is that before the first
    attempt. An older checkpoint than before (one was damaged) is no progress.
    """
    best, since = -1, 0
    for newest in saved:
        if newest > best:
            best, since = newest, 0
        else:
            since += 1
    return since


def count_fruitless_resumes(history: PollHistory, reading: PollReading, limits: MonitorLimits) -> int:
    """Count the resumes in a row after which no newer checkpoint was seen."""
    steps = [resume.step for resume in history.resumes] + [find_best_step(history, reading)]
    return count_fruitless([step // limits.interval_steps for step in steps])


def decide(reading: PollReading, history: PollHistory, limits: MonitorLimits) -> Decision:
    """The action of a poll. The first line that applies decides."""
    ended = reading.ended
    if ended is not None and ended.state == "SUCCEEDED":
        return Decision("report", f"job {ended.id} succeeded", closes=True)
    if reading.jobs is None:
        return Decision("wait", "the queue of managed jobs cannot be read, so a live job cannot be excluded")
    if reading.live is not None:
        return _decide_live(reading, reading.live, history, limits)
    if reading.verdict == "finished":
        return Decision("report", f"finished: {reading.why}", closes=True)
    if history.gave_up is not None:
        fix = "correct the cause and close this issue; the next poll then begins anew"
        return Decision("report", f"given up before: {history.gave_up}", fix)
    if reading.verdict in ("alive", "slow"):
        return Decision("wait", f"no managed job, and yet the run is {reading.verdict}: {reading.why}")
    if reading.verdict == "unknown":
        return Decision("wait", f"not known whether the run lives: {reading.why}")
    return _decide_dead(reading, ended, history, limits)


def _decide_live(reading: PollReading, job: MonitoredJob, history: PollHistory, limits: MonitorLimits) -> Decision:
    """A live job is never joined by another one. It is cancelled if it only costs money."""
    lost = _count_fruitless_recoveries(reading, job, history, limits)
    if lost >= limits.most_lost_machines:
        why = f"job {job.id} lost {counted(lost, 'machine')} in a row before a newer checkpoint"
        fix = "save more often (prime-train estimate recommends an interval), or use another cloud"
        return Decision("give-up", why, fix, cancel=job.id)
    if reading.verdict not in _DEAD or job.state != "RUNNING":
        return Decision("wait", f"job {job.id} is {job.state}, the run is {reading.verdict}")
    silent_s = reading.at_s - _find_dead_since_s(reading, job, history)
    if silent_s >= limits.hung_s:
        why = f"job {job.id} is paid and makes no progress for {format_seconds(silent_s)}: {reading.why}"
        return Decision("give-up", why, "read the logs: sky jobs logs " + str(job.id), cancel=job.id)
    why = f"{reading.verdict}, but job {job.id} is RUNNING: {reading.why}"
    return Decision("report", why, f"sky jobs logs {job.id}; the supervisor on the machine restarts a hung trainer")


def _count_fruitless_recoveries(
    reading: PollReading, job: MonitoredJob, history: PollHistory, limits: MonitorLimits
) -> int:
    """Recoveries of the live job since the poll that first saw its newest checkpoint.

    0 while the step is not known, or may be known too late: metrics at W&B lag by 20 to 30 minutes.
    """
    best, since, since_s = -1, 0, reading.at_s
    for poll in (*history.polls, record(reading)):
        if poll.job != job.id or poll.step is None:
            continue
        saved = poll.step // limits.interval_steps
        if saved > best:
            best, since, since_s = saved, poll.recoveries, poll.at_s
    is_known = reading.step is not None and reading.verdict != "unknown"
    return job.recoveries - since if is_known and reading.at_s - since_s >= limits.lag_s else 0


def _find_dead_since_s(reading: PollReading, job: MonitoredJob, history: PollHistory) -> float:
    """When the unbroken series of polls began that saw this job without a sign of life and without a new step."""
    since_s = reading.at_s
    for poll in reversed(history.polls):
        if poll.job != job.id or poll.verdict not in _DEAD or poll.step != reading.step:
            break
        if poll.recoveries != job.recoveries:
            break
        since_s = poll.at_s
    return since_s


def _decide_dead(
    reading: PollReading, ended: MonitoredJob | None, history: PollHistory, limits: MonitorLimits
) -> Decision:
    if ended is not None and ended.state == "CANCELLED":
        return Decision("report", f"job {ended.id} was cancelled", "start it again by hand if that was a mistake")
    if ended is not None and ended.state in _HOPELESS:
        why = f"job {ended.id} ended as {ended.state}: another one would end the same way"
        return Decision("give-up", why, f"sky jobs logs --controller {ended.id}")
    if not reading.resumable:
        return Decision("give-up", f"{reading.verdict} and not resumable: {reading.why}", "read the logs of the run")
    if ended is None and not _is_agreed(reading, history, limits):
        return Decision("wait", f"{reading.verdict}: {reading.why}; the next poll must agree")
    fruitless = count_fruitless_resumes(history, reading, limits)
    if fruitless >= limits.most_fruitless:
        why = f"{counted(fruitless, 'resume')} without a newer checkpoint; {reading.verdict}: {reading.why}"
        return Decision("give-up", why, "read the logs of the last job, correct the cause and close this issue")
    last = history.resumes[-1] if history.resumes else None
    wait_s = min(limits.backoff_s * 2**fruitless, limits.longest_backoff_s)
    if last is not None and reading.at_s < last.at_s + wait_s:
        left_s = last.at_s + wait_s - reading.at_s
        return Decision("wait", f"{reading.verdict}; the next resume is due in {format_seconds(left_s)}")
    return Decision("resume", f"{reading.verdict} at step {find_best_step(history, reading)}: {reading.why}")


def _is_agreed(reading: PollReading, history: PollHistory, limits: MonitorLimits) -> bool:
    """Whether the polls of the last `apart_s` and one before them all saw the run dead, at the same step."""
    for poll in reversed(history.polls):
        if poll.verdict not in _DEAD or poll.job is not None or poll.step != reading.step:
            return False
        if reading.at_s - poll.at_s >= limits.apart_s:
            return True
    return False
