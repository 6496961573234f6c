"""Watches the GPUs of a run: a child calls the driver, and this module judges its samples."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import ChildProcess as ChildOfRun
from prime_train.supervise.core.state import Live, State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.gpu.history import GpuHistory, GpuLimits, Scene, list_used
from prime_train.supervise.watches.gpu.judge import judge
from prime_train.supervise.watches.gpu.risk_report import RiskReport
from prime_train.supervise.watches.gpu.samples import DriverRefusal, GpuReading, Message, NoDriver, Xid
from prime_train.supervise.watches.sample_lines import load
from prime_train.supervise.watches.sampler import SampledWatch, Sampler
from prime_train.supervise.watches.watch import Alarm

_PROGRAM = Path(__file__).with_name("gpu_program.py")
_MOVING_PHASES = frozenset({"evaluate", "checkpoint", "export"})


def create(context: Context) -> GpuWatch:
    answer = context.run.prime_train.watch.gpu
    assert answer != "off"
    risk = RiskReport(context.run_dir, context.run.prime_train.gpu_risk)
    return GpuWatch(context.run_dir, answer=answer, visible=os.environ.get("CUDA_VISIBLE_DEVICES"), risk=risk)


class GpuWatch(SampledWatch):
    """The GPU watch of one run. `answer` is the most that it requests; `visible` as the run's CUDA_VISIBLE_DEVICES.

    GPUs that the run may not use, or that were left out, end no attempt. Errors of its child go to watches/gpu.log in
    the run's directory. `sampler` and `clock` (monotonic) are for tests.
    """

    name = "gpu"

    def __init__(
        self,
        run_dir: RunDir,
        *,
        answer: Literal["alert", "restart"],
        interval_s: float = 10.0,
        kmsg: Path = Path("/dev/kmsg"),
        visible: str | None = None,
        sampler: Callable[..., Sampler] = Sampler,
        clock: Callable[[], float] = time.monotonic,
        risk: RiskReport | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._limits = GpuLimits(answer=answer, visible=visible, interval_s=interval_s)
        self._log = run_dir.watches / "gpu.log"
        self._kmsg = kmsg
        self._clock = clock
        self._risk = risk
        self._memory = GpuHistory()
        self._sampler = sampler(_PROGRAM, self._list_arguments(), self._log, clock=clock)

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """Everything that is wrong with the GPUs. From `state` it reads the live attempt and the GPUs left out."""
        messages, scene = self._take(), _read_scene(state, self._clock())
        self._memory, alarms = judge(self._memory, messages, scene, self._limits)
        if self._risk is not None:
            used = list_used(self._memory, self._limits, scene.left_out)
            alarms += self._risk.look(self._memory, messages, state, used)
        if not self._memory.no_driver:
            self._sampler.arguments = self._list_arguments()
            limit_s = self._limits.silent_after_s
            self._sampler.keep(is_stuck=self._memory.silent_s > limit_s and self._sampler.age_s > limit_s)
        return alarms

    def remaining(self, out: Collection[str]) -> tuple[str, ...]:
        """UUIDs of the run's GPUs except `out`, in the order of their numbers: a value for CUDA_VISIBLE_DEVICES.

        Empty if no GPU is left, and until the driver has listed the GPUs.
        """
        ours = list_used(self._memory, self._limits, frozenset(out))
        return tuple(gpu.uuid for gpu in self._memory.known if gpu.uuid in ours)

    @property
    def has_looked(self) -> bool:
        """Whether the GPUs are known, or will never be: there is no driver, or it does not answer."""
        return bool(self._memory.known) or not self.processes()

    def numbers(self, uuids: Collection[str]) -> tuple[str, ...]:
        """The numbers of GPUs, which CUDA_VISIBLE_DEVICES accepts too: "0", "3"."""
        return tuple(str(gpu.index) for gpu in self._memory.known if gpu.uuid in uuids)

    def _list_arguments(self) -> tuple[str, ...]:
        """Those of the next child, which reads the kernel's log from where the one before stopped."""
        after = str(self._memory.log_sequence)
        return (str(self._limits.interval_s), str(self._kmsg), after, str(self._run_dir.path))

    def _take(self) -> list[Message]:
        """The messages of the child. A child that ended without a reason did not reach the driver."""
        ended = self._sampler.ended  # before the lines are read: they then include the last one
        messages = [parse(line) for line in self._sampler.take()]
        if ended and not self._sampler.is_restarting and not self._memory.refused and not messages:
            log = self._run_dir.relative(self._log)
            return [DriverRefusal(f"the program that calls it ended with exit code {ended}, see {log}")]
        return messages


def _read_scene(state: State, now_s: float) -> Scene:
    live, left_out = state.live, frozenset(state.left_out)
    if live is None:
        return Scene(now_s, left_out=left_out)
    return Scene(
        now_s,
        left_out=left_out,
        attempt=live.number,
        roles={child.pid: child.role for child in live.children},
        steady=frozenset(child.role for child in live.children if _is_steady(child, live)),
        moving=live.phase in _MOVING_PHASES,
    )


def _is_steady(child: ChildOfRun, live: Live) -> bool:
    """Whether it lives and is past its start: a service that answers, a trainer that has made a step."""
    if child.role in live.services:
        begun = child.role in live.ready
    else:
        begun = live.first_progress is not None and live.phase not in _MOVING_PHASES
    return begun and Identity(child.pid, child.start_ticks).alive


def parse(line: dict[str, Any]) -> Message:
    """One line of the child. Raises ValueError for any other line."""
    if "no_driver" in line:
        return NoDriver(line["no_driver"])
    if "refused" in line:
        return DriverRefusal(line["refused"])
    return load(Xid, line) if "code" in line else load(GpuReading, line)
