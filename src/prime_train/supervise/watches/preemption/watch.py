"""Watches for the notice of a cloud that it takes this machine away. Elsewhere it starts no process and sends nothing.

Where a cloud gives no notice but SIGTERM, the supervisor's own answer to that signal is the same: save, end, code 75.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.preemption.find_cloud import Metadata, find_cloud
from prime_train.supervise.watches.preemption.judge import Memory, Sample, judge
from prime_train.supervise.watches.sample_lines import load
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm, Context

_PROGRAM = Path(__file__).with_name("preemption_program.py")
INTERVAL_S = 5.0  # AWS recommends 5 s


def create(context: Context) -> PreemptionWatch:
    answer = context.run.prime_train.watch.preemption
    assert answer != "off"
    return PreemptionWatch(context.run_dir, find_cloud(os.environ), answer=answer)


class PreemptionWatch:
    """A child asks the metadata server of `metadata`; None = this machine is at none of the three clouds."""

    name = "preemption"

    def __init__(
        self,
        run_dir: RunDir,
        metadata: Metadata | None,
        *,
        answer: Literal["alert", "pause"] = "pause",
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._metadata = metadata
        self._answer = answer
        self._log = run_dir.watches / "preemption.log"
        self._memory = Memory()
        self._sampler: Sampler | None = None
        if metadata is not None:
            arguments = [metadata.cloud, metadata.url, str(interval_s)]
            self._sampler = Sampler(_PROGRAM, arguments, self._log)

    def begin(self) -> None:
        """Start to ask, if this machine is at a cloud."""
        if self._sampler is not None:
            self._sampler.begin()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del state
        if self._sampler is None or self._metadata is None:
            return ()
        self._sampler.keep()
        samples = [load(Sample, raw) for raw in self._sampler.take()]
        self._memory, alarms = judge(self._memory, samples, self._metadata.cloud, now_s, time.monotonic(), self._answer)
        return (*alarms, *self._judge_sampler(self._sampler))

    def _judge_sampler(self, sampler: Sampler) -> Iterator[Alarm]:
        if sampler.failed is not None:
            what = f"notices of a pre-emption are not watched: the program ended with exit code {sampler.failed}"
            why, fix = "the machine may be taken away without a save before", f"see {self._log}"
            yield Alarm(
                *("preemption", "preemption_not_watched", "its program", "note", "unknown", what, why, fix),
                where=str(self._log),
            )

    def processes(self) -> tuple[Identity, ...]:
        return self._sampler.processes() if self._sampler is not None else ()

    def end(self) -> None:
        if self._sampler is not None:
            self._sampler.end()
