"""Watches for the notice of a cloud that it takes this machine away. Elsewhere it starts no process and sends nothing.

Where a cloud gives no notice but SIGTERM, the supervisor's own answer to that signal is the same: save, end, code 75.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.context import Context
from prime_train.supervise.watches.preemption.find_cloud import Metadata, find_cloud
from prime_train.supervise.watches.preemption.judge import Memory, Sample, judge
from prime_train.supervise.watches.sampler import SampledWatch, Sampler
from prime_train.supervise.watches.watch import Alarm

_PROGRAM = Path(__file__).with_name("preemption_program.py")
INTERVAL_S = 5.0  # AWS recommends 5 s


def create(context: Context) -> PreemptionWatch | None:
    """None if this machine is at none of the three clouds."""
    answer, metadata = context.run.prime_train.watch.preemption, find_cloud(os.environ)
    assert answer != "off"
    return None if metadata is None else PreemptionWatch(context.run_dir, metadata, answer=answer)


class PreemptionWatch(SampledWatch):
    """A child asks the metadata server of `metadata`."""

    name = "preemption"

    def __init__(
        self,
        run_dir: RunDir,
        metadata: Metadata,
        *,
        answer: Literal["alert", "pause"] = "pause",
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._metadata = metadata
        self._answer = answer
        self._log = run_dir.watches / "preemption.log"
        self._memory = Memory()
        self._sampler = Sampler(_PROGRAM, [metadata.cloud, metadata.url, str(interval_s)], self._log)

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        samples, now_monotonic_s = self.take(Sample), time.monotonic()
        self._memory, alarms = judge(self._memory, samples, self._metadata.cloud, now_s, now_monotonic_s, self._answer)
        return (*alarms, *self._judge_sampler())

    def _judge_sampler(self) -> Iterator[Alarm]:
        if self._sampler.failed is not None:
            what = f"notices of a pre-emption are not watched: the program ended with exit code {self._sampler.failed}"
            why, fix = "the machine may be taken away without a save before", f"see {self._log}"
            yield Alarm(
                *("preemption", "preemption_not_watched", "its program", "note", "unknown", what, why, fix),
                where=str(self._log),
            )
