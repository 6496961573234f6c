"""Watches the machine of a run: memory that runs out or grows, processes killed for it, shared memory, files, clock.

It ends no attempt: when memory really runs out, the kernel kills a process, and the signature of that names the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.host.judge import HostHistory, judge, read_run
from prime_train.supervise.watches.host.sample import HostSample
from prime_train.supervise.watches.sampler import SampledWatch, Sampler
from prime_train.supervise.watches.watch import Alarm

_PROGRAM = Path(__file__).with_name("host_program.py")


def create(context: Context) -> HostWatch:
    return HostWatch(context.run_dir)


class HostWatch(SampledWatch):
    """A child samples the host every `interval_s`, and `look` judges the samples."""

    name = "host"

    def __init__(self, run_dir: RunDir, *, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._log = run_dir.watches / "host.log"
        self._sampler = Sampler(_PROGRAM, [str(interval_s), str(run_dir.path)], self._log)
        self._memory = HostHistory()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        self._memory, alarms = judge(self._memory, self.take(HostSample), read_run(state))
        return (*alarms, *self._judge_sampler())

    def _judge_sampler(self) -> Iterator[Alarm]:
        ended, silent_s = self._sampler.failed, self._sampler.silent_s
        if ended is None and silent_s < max(60.0, 6 * self._interval_s):
            return
        what = f"its program ended with exit code {ended}" if ended is not None else f"no sample for {silent_s:.0f} s"
        what, why = f"the host is not watched: {what}", "a process may wait in the kernel for a disk or a driver"
        fix, where = f"see {self._log}", str(self._log)
        yield Alarm("host", "host_not_watched", "this machine", "note", "unknown", what, why, fix, where)
