"""Simulates the life of a run on spot machines: time, money and lost work, from a seed. Pure, no clock.

A life is computed attempt by attempt, not second by second: within one attempt the number of complete saves follows
from its length. So 1,000 lives of 30 days take about a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prime_train.away.monitor.decide import MonitorLimits, count_fruitless
from prime_train.estimate.spot.advice import Saves
from tests.unit.estimate.spot.machines import Process

MOST_LOST_MACHINES = MonitorLimits().most_lost_machines
GivesUp = Callable[[Sequence[int]], bool]
_HOUR_S = 3600.0


def is_hopeless(saved: Sequence[int]) -> bool:
    """Whether the monitor ends the run: so many machines were lost in a row before a newer checkpoint."""
    return count_fruitless(saved) >= MOST_LOST_MACHINES


class SpotRun(NamedTuple):
    """A run as the simulation sees it. `work_s`: training without saves and interruptions; infinite for no last step.

    `interval_s` is training between two saves, `restart_s` the billed time from a machine to the first step.
    """

    work_s: float
    interval_s: float
    saves: Saves
    restart_s: float
    usd_per_hour: float = 0.0
    horizon_s: float = 30 * 24 * _HOUR_S

    @property
    def cycle_s(self) -> float:
        """From one save to the next."""
        return self.interval_s + self.saves.stall_s

    @property
    def lag_s(self) -> float:
        """From the end of a save's stall to its marker: n saves of an attempt take n cycles and one lag."""
        return max(0.0, self.saves.write_s - self.saves.stall_s)


class Life(NamedTuple):
    """What became of one run. `end`: "finished", "given up" or "out of time" (the horizon came first).

    `paid_s` = `work_s` + `stall_s` + `lost_s` + `restart_s`, up to rounding; `elapsed_s` also has the waits for a
    machine. `lost_s` is training, and saves, that had to be repeated. `longest_fruitless_s` is the longest paid time
    between two saves, interrupted ones included.
    """

    end: str
    elapsed_s: float
    paid_s: float
    work_s: float
    stall_s: float
    lost_s: float
    restart_s: float
    interruptions: int
    longest_fruitless_s: float


@dataclass(slots=True)
class _Ledger:
    """The sums of a life so far. `saved` is the number of saves after each attempt."""

    run: SpotRun
    saved: list[int]
    clock_s: float = 0.0
    paid_s: float = 0.0
    lost_s: float = 0.0
    restart_s: float = 0.0
    fruitless_s: float = 0.0  # paid since the last complete save
    longest_s: float = 0.0

    def pay(self, used_s: float) -> None:
        self.clock_s += used_s
        self.paid_s += used_s
        self.restart_s += min(used_s, self.run.restart_s)

    def attempt(self, used_s: float, most: float) -> float:
        """Pays an attempt that does not finish the run; returns what it trained after its last complete save."""
        self.pay(used_s)
        trained_s = max(0.0, used_s - self.run.restart_s)
        complete = int(min(max(0.0, (trained_s - self.run.lag_s) // self.run.cycle_s), most))
        rest_s = trained_s - complete * self.run.cycle_s
        if complete:
            first_s = self.run.restart_s + self.run.cycle_s + self.run.lag_s
            self.longest_s = max(self.longest_s, self.fruitless_s + first_s)
        self.fruitless_s = rest_s if complete else self.fruitless_s + used_s
        self.longest_s = max(self.longest_s, self.fruitless_s)
        self.saved.append(self.saved[-1] + complete)
        return rest_s

    def close(self, end: str, interruptions: int) -> Life:
        stall_s = self.saved[-1] * self.run.saves.stall_s
        rest_s = self.paid_s - self.lost_s - self.restart_s - stall_s
        work_s = self.run.work_s if end == "finished" else max(0.0, rest_s)
        sums = (self.clock_s, self.paid_s, work_s, stall_s, self.lost_s, self.restart_s)
        return Life(end, *sums, interruptions, self.longest_s)


def simulate(run: SpotRun, process: Process, seed: int, gives_up: GivesUp = is_hopeless) -> Life:
    """One life. `gives_up` gets the number of saves after each attempt, as away/monitor/decide.py counts them.

    An attempt pays `restart_s`, then trains. What follows its last complete save is lost with the machine.
    """
    book = _Ledger(run, [0])
    needed = math.ceil(run.work_s / run.interval_s - 1e-9) if math.isfinite(run.work_s) else math.inf
    for interruptions, machine in enumerate(process.machines(seed)):
        book.clock_s += machine.wait_s
        left_s = run.horizon_s - book.clock_s
        if left_s <= 0:
            book.clock_s = run.horizon_s
            return book.close("out of time", interruptions)
        used_s = min(machine.up_s, left_s)
        whole_s = run.restart_s + _seconds_to_the_end(run, book.saved[-1], needed)
        if used_s >= whole_s:
            book.attempt(whole_s, needed - book.saved[-1])
            book.saved[-1] = int(needed)
            return book.close("finished", interruptions)
        rest_s = book.attempt(used_s, needed - book.saved[-1] - 1)
        if machine.up_s >= left_s:  # the horizon, and no interruption: what is trained is not lost
            return book.close("out of time", interruptions)
        book.lost_s += rest_s
        if gives_up(book.saved):
            return book.close("given up", interruptions + 1)
    raise AssertionError("a process of machines has no end")


def _seconds_to_the_end(run: SpotRun, saved: int, needed: float) -> float:
    """Training, stalls and the last write, from the save number `saved` to the end."""
    if math.isinf(needed):
        return math.inf
    return run.work_s - saved * run.interval_s + (needed - saved) * run.saves.stall_s + run.lag_s


def bound_fruitless_s(run: SpotRun, most_fruitless: int = MOST_LOST_MACHINES) -> float:
    """The most paid seconds between two complete saves under the policy.

    An attempt that lives longer than a restart, an interval and a write has saved. So each of `most_fruitless` attempts
    in a row, and the rest of the attempt before them, is shorter than that.
    """
    return (most_fruitless + 1) * (run.restart_s + run.cycle_s + run.lag_s)
