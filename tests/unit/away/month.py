"""Thirty days of a run on spot machines, watched by the real decisions of the monitor. Pure: every draw has a seed.

SkyPilot recovers from each interruption without end. W&B shows steps late. A poll comes every 15 minutes, and sometimes
hours later. The monitor's `decide` sees only what a poll can see.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import NamedTuple

from prime_train.away.monitor.decide import (
    BegunResume,
    MonitoredJob,
    MonitorLimits,
    PollHistory,
    PollReading,
    Verdict,
    decide,
    record,
)
from tests.unit.estimate.spot.machines import Generated

HOUR_S = 3600.0
MONTH_S = 30 * 24 * HOUR_S
_POLLS_KEPT = 100
_LAG_S = 1500.0


class Market(NamedTuple):
    """What a month is like. `dies_per_launch`: the probability that a job ends by an error some time after a start."""

    between_s: float
    shape: float = 1.0
    wait_s: float = 300.0
    dies_per_launch: float = 0.0
    dies_always: bool = False  # each job ends before its first checkpoint


class Training(NamedTuple):
    step_s: float = 20.0
    interval_steps: int = 60
    restart_s: float = 600.0
    max_steps: int = 100_000


class Month(NamedTuple):
    """What became of it. `longest_fruitless_s`: the longest paid time from a checkpoint to the next, or to the end."""

    end: str
    paid_s: float
    launches: int
    recoveries: int
    longest_fruitless_s: float


class _Run:
    """The managed job, its machines and its checkpoints, moved on to the time of each poll."""

    def __init__(self, training: Training, market: Market, seed: int) -> None:
        self.training, self.market = training, market
        self.draw = random.Random(seed)
        self.machines = Generated(market.between_s, market.shape, market.wait_s).machines(seed)
        self.jobs: list[MonitoredJob] = []
        self.clock_s = 0.0
        self.paid_s = 0.0
        self.fruitless_s = 0.0
        self.longest_s = 0.0
        self.saved = 0
        self.shown: list[tuple[float, int]] = [(0.0, 0)]  # (time, highest step of the run at W&B)
        self.machine_left_s = 0.0
        self.wait_left_s = 0.0
        self.since_start_s = 0.0
        self.fails_after_s: float | None = None
        self.launch()

    def launch(self) -> None:
        self.jobs.append(MonitoredJob(len(self.jobs) + 1, "RUNNING", 0))
        self.fails_after_s = None
        if self.market.dies_always or self.draw.random() < self.market.dies_per_launch:
            first_s = self.training.restart_s + self.training.interval_steps * self.training.step_s
            self.fails_after_s = self.draw.uniform(0, first_s if self.market.dies_always else 10 * first_s)
        self._next_machine()

    def _next_machine(self) -> None:
        machine = next(self.machines)
        self.wait_left_s, self.machine_left_s, self.since_start_s = machine.wait_s, machine.up_s, 0.0

    @property
    def job(self) -> MonitoredJob:
        return self.jobs[-1]

    def end(self, state: str) -> None:
        self.jobs[-1] = self.job._replace(state=state)

    def step(self) -> int:
        """The step that the present machine has reached."""
        trained_s = max(0.0, self.since_start_s - self.training.restart_s)
        return self.saved + int(trained_s / self.training.step_s)

    def move_to(self, time_s: float) -> None:
        """Let machines train, save and vanish until `time_s`."""
        while self.clock_s < time_s and self.job.is_live:
            if self.wait_left_s > 0:
                self._pass(min(self.wait_left_s, time_s - self.clock_s), paid=False)
                continue
            limits = [self.machine_left_s, time_s - self.clock_s, self._to_next_save_s()]
            if self.fails_after_s is not None:
                limits.append(self.fails_after_s)
            self._pass(max(1e-6, min(limits)), paid=True)
            if self._to_next_save_s() <= 1e-3:
                self._save()
            if self.saved >= self.training.max_steps:
                self.end("SUCCEEDED")
            elif self.fails_after_s is not None and self.fails_after_s <= 1e-3:
                self.end("FAILED")
            elif self.machine_left_s <= 1e-3:
                self.jobs[-1] = self.job._replace(recoveries=self.job.recoveries + 1)
                self._next_machine()
        self.clock_s = max(self.clock_s, time_s)

    def _to_next_save_s(self) -> float:
        return self.training.restart_s + self.training.interval_steps * self.training.step_s - self.since_start_s

    def _save(self) -> None:
        self.saved += self.training.interval_steps
        self.since_start_s = self.training.restart_s  # the next interval begins
        self.fruitless_s = 0.0

    def _pass(self, seconds: float, *, paid: bool) -> None:
        self.clock_s += seconds
        if not paid:
            self.wait_left_s -= seconds
            return
        self.paid_s += seconds
        self.fruitless_s += seconds
        self.longest_s = max(self.longest_s, self.fruitless_s)
        self.since_start_s += seconds
        self.machine_left_s -= seconds
        if self.fails_after_s is not None:
            self.fails_after_s -= seconds

    def show(self) -> None:
        self.shown.append((self.clock_s, max(self.shown[-1][1], self.step())))

    def shown_step(self) -> int:
        """The step that W&B shows now: that of up to 25 minutes ago."""
        lag_s = self.draw.uniform(0, _LAG_S)
        at = bisect_right(self.shown, (self.clock_s - lag_s, 10**9))
        return self.shown[max(0, at - 1)][1]


def live_through(training: Training, market: Market, seed: int, gives_up: bool = True) -> Month:
    """A month, or the run to its end. Without `gives_up` the decisions to stop are ignored, as without a monitor."""
    run, draw = _Run(training, market, seed), random.Random(seed + 1)
    history, limits = PollHistory(), MonitorLimits(interval_steps=training.interval_steps)
    now_s = 0.0
    while now_s < MONTH_S:
        late_s = draw.uniform(3600, 4 * 3600) if draw.random() < 0.02 else draw.uniform(0, 1200)
        now_s += 900 + late_s
        run.move_to(now_s)
        run.show()
        decision = decide(_read(run), history, limits)
        history = history._replace(polls=(*history.polls, record(_read(run)))[-_POLLS_KEPT:])
        if decision.closes:
            return _close("finished", run)
        if decision.action == "resume":
            history = _resume(run, history, now_s)
        elif decision.action == "give-up" and gives_up:
            return _close("given up", run)
        elif decision.action == "give-up" and decision.cancel is None:
            history = _resume(run, history, now_s)
    return _close("out of time", run)


def _resume(run: _Run, history: PollHistory, now_s: float) -> PollHistory:
    run.launch()
    resume = BegunResume(len(history.resumes) + 1, now_s, run.shown[-1][1])
    return history._replace(resumes=(*history.resumes, resume))


def _read(run: _Run) -> PollReading:
    dead = not run.job.is_live
    verdict: Verdict = "finished" if run.job.state == "SUCCEEDED" else "crashed" if dead else "alive"
    jobs = tuple(run.jobs)
    return PollReading(run.clock_s, verdict, "", dead, run.shown_step(), jobs)


def _close(end: str, run: _Run) -> Month:
    return Month(end, run.paid_s, len(run.jobs), sum(job.recoveries for job in run.jobs), run.longest_s)


def bound_fruitless_s(training: Training, limits: MonitorLimits) -> float:
    """The most that may be paid without a checkpoint: ten machines, and what passes until a poll can know of it.

    A poll comes at the latest 4 h 15 min after the one before. A lost machine counts after the lag of W&B; the attempt
    that runs meanwhile is paid too.
    """
    attempt_s = training.restart_s + training.interval_steps * training.step_s
    poll_s = 900 + 4 * 3600
    return (limits.most_lost_machines + 1) * attempt_s + 2 * poll_s + limits.lag_s + _LAG_S
