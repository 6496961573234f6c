"""Watches the times of the ranks, and reports the rank that every other one waits for.

It reads the small files that the ranks keep; those of other machines come by the relay. A run with one rank has none. A
model in shards whose blocks are compiled names its GPUs there, and no times.
"""

from __future__ import annotations

from typing import Literal

from prime_train.core.process_id import Identity
from prime_train.core.rank_times import RankTimes, read_all_times
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_seconds
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.straggler.detect import NO_RANKS, SlowRank, find_present, follow
from prime_train.supervise.watches.watch import Alarm, Answer

NAME = "slow_rank"
ALERT_IMPACT, ALERT_AFTER_S = 0.05, 600.0
TEST_AFTER_S = 900.0  # a person has been alerted and may have found the reason
DRAIN_IMPACT, DRAIN_AFTER_S = 0.20, 120.0


def create(context: Context) -> StragglerWatch:
    answer = context.run.prime_train.watch.straggler
    assert answer != "off"
    layout = context.run.parallel
    return StragglerWatch(context.run_dir, answer, may_test=layout.replicas > 0, processes=layout.processes_here)


class StragglerWatch:
    """The straggler watch of one run. `answer`: the most that it requests. `may_test`: a rank can leave for a test.

    `processes`: of each machine; 0 = there is one machine.
    """

    name = "straggler"

    def __init__(
        self, run_dir: RunDir, answer: Literal["alert", "drain"], *, may_test: bool = False, processes: int = 0
    ) -> None:
        self._run_dir, self._answer, self._may_test, self._processes = run_dir, answer, may_test, processes
        self._attempt, self._history = 0, NO_RANKS
        self._since_s: dict[int, float] = {}  # since when a rank is slow

    def begin(self) -> None:
        """Start nothing: the ranks measure, and their files are small."""

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        if state.live is None:
            return ()
        if state.live.number != self._attempt:
            self._attempt, self._history, self._since_s = state.live.number, NO_RANKS, {}
        found = read_all_times(self._run_dir.rank_times(self._attempt), self._run_dir.path)
        self._history = follow(self._history, find_present({rank: times.steps for rank, times in found.items()}))
        slow = [one for one in self._history.slow if one.rank in found]
        self._since_s = {one.rank: self._since_s.get(one.rank, now_s) for one in slow}
        return tuple(self._report(one, found[one.rank], state, now_s - self._since_s[one.rank]) for one in slow)

    def _report(self, slow: SlowRank, times: RankTimes, state: State, lasts_s: float) -> Alarm:
        machine = slow.rank // self._processes if self._processes else 0
        # A drain of another machine pauses the whole run, so a person decides.
        may_drain = self._answer == "drain" and bool(times.gpu) and machine == 0
        answer = choose_answer(slow, lasts_s, may_drain=may_drain, may_test=may_drain and self._may_test)
        subject = f"rank {slow.rank}"
        place = f"{times.gpu} of {times.machine}" if times.gpu else times.machine
        lasts = f" for {format_seconds(lasts_s)}" if lasts_s >= 1 else ""
        what = f"{subject} on {place} has been {slow.excess:.0%} slower than the others{lasts}"
        what += f"; a step takes {slow.impact:.0%} longer than without that"
        why = "every rank waits for the slowest one in each step" + _find_reason(slow, times, state)
        fix = f"top shows what else runs on {times.machine}"
        if times.gpu:
            drain = f"prime-train gpu drain {self._run_dir.path.name}"
            of_machine = f"{drain} machine-{machine}, which tests its GPUs while the run is paused"
            fix = of_machine if machine else f"{drain} {times.gpu}, which also tests it"
        # A GPU in an alarm is one of this machine, which another watch may drain.
        return Alarm(self.name, NAME, subject, answer, "hardware", what, why, fix, "" if machine else times.gpu)

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self) -> None:
        """Nothing runs."""


def choose_answer(slow: SlowRank, lasts_s: float, *, may_drain: bool, may_test: bool = False) -> Answer:
    """The step of the ladder. Slow data is no fault of a GPU, so another GPU would not help.

    Without replicas a test would end the attempt, and beside the training it would take memory of it: `may_test`.
    """
    if may_drain and not slow.is_data and slow.impact > DRAIN_IMPACT and lasts_s >= DRAIN_AFTER_S:
        return "drain"
    if slow.impact <= ALERT_IMPACT or lasts_s < ALERT_AFTER_S:
        return "note"
    return "test" if may_test and not slow.is_data and lasts_s >= TEST_AFTER_S else "alert"


def _find_reason(slow: SlowRank, times: RankTimes, state: State) -> str:
    """More about the reason, where anything is known."""
    if slow.is_data:
        return "; it waits for its rows"
    known = (active.alarm for active in state.alarms if active.alarm.watch == "gpu" and times.gpu)
    return next((f"; {alarm.what}" for alarm in known if alarm.where == times.gpu), "")
