"""Watches the GPUs of a run: has a child ask the driver, and judges what it says. Asks the driver nothing itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.supervise.state import Child as ChildOfRun
from prime_train.supervise.state import Live, State
from prime_train.supervise.watches.gpu.history import Limits, Memory, Scene, used
from prime_train.supervise.watches.gpu.judge import judge, left_out
from prime_train.supervise.watches.gpu.samples import Heard, Reading, Refused, heard
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm

__all__ = ["GpuWatch", "left_out"]

_PROGRAM = Path(__file__).with_name("gpu_program.py")
_AGAIN_S = 10.0  # until the next child is tried, twice as long each time
_AGAIN_MAX_S = 300.0
_MOVING_PHASES = frozenset({"evaluate", "checkpoint", "export"})


class Child(Protocol):
    """What the watch needs of a Sampler."""

    def begin(self) -> None: ...
    def take(self) -> list[dict[str, object]]: ...
    @property
    def ended(self) -> int | None: ...
    def processes(self) -> tuple[Identity, ...]: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Trial:
    """A child, since when it runs, and when another one is tried after it, which is None while it runs well."""

    child: Child
    began_s: float
    again_s: float | None = None


class GpuWatch:
    """The GPU watch of one run. `answer` is the most that it asks for; `visible` as the run's CUDA_VISIBLE_DEVICES.

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
        sampler: Callable[..., Child] = Sampler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._limits = Limits(answer=answer, visible=visible, interval_s=interval_s)
        self._log = run_dir.watches / "gpu.log"
        self._kmsg = kmsg
        self._sampler = sampler
        self._clock = clock
        self._memory = Memory()
        self._trial: _Trial | None = None
        self._pause_s = _AGAIN_S

    def begin(self) -> None:
        """Start the child. Raises OSError where it cannot be started."""
        after = str(self._memory.log_sequence)
        arguments = (str(self._limits.interval_s), str(self._kmsg), after, str(self._run_dir.path))
        child = self._sampler(_PROGRAM, arguments, self._log)
        child.begin()
        self._trial = _Trial(child, self._clock())

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:  # noqa: ARG002 - samples carry the monotonic clock
        """Everything that is wrong with the GPUs. Of `state` it takes the live attempt, and what is left out."""
        lately_s = self._clock()
        said = self._heard()
        self._memory, alarms = judge(self._memory, said, _scene(state, lately_s), self._limits)
        self._keep(said, lately_s)
        return alarms

    def processes(self) -> tuple[Identity, ...]:
        return self._trial.child.processes() if self._trial else ()

    def end(self) -> None:
        """End the child. One that has ended is left alone: its number may be another process's by now."""
        if self._trial is not None and self._trial.child.processes():
            self._trial.child.end()

    def remaining(self, out: Collection[str]) -> tuple[str, ...]:
        """UUIDs of the run's GPUs but for `out`, in the order of their numbers: a value for CUDA_VISIBLE_DEVICES.

        Empty where nothing is left, and as long as the driver has not told which GPUs there are.
        """
        ours = used(self._memory, self._limits, frozenset(out))
        return tuple(gpu.uuid for gpu in self._memory.known if gpu.uuid in ours)

    @property
    def has_looked(self) -> bool:
        """Which GPUs there are is known, or will not be: there is no driver, or it does not answer."""
        trial = self._trial
        return bool(self._memory.known) or trial is None or trial.child.ended is not None

    def numbers(self, uuids: Collection[str]) -> tuple[str, ...]:
        """The numbers of GPUs, as CUDA_VISIBLE_DEVICES may name them too: "0", "3"."""
        return tuple(str(gpu.index) for gpu in self._memory.known if gpu.uuid in uuids)

    # --- the child ---

    def _heard(self) -> list[Heard]:
        """What the child said. One that ended without saying why did not even get as far as the driver."""
        trial = self._trial
        if trial is None:
            return []
        ended = trial.child.ended  # before the lines: its last one is then among them, or was
        said = [heard(line) for line in trial.child.take()]
        if ended and trial.again_s is None and not self._memory.refused and not said:
            log = self._run_dir.relative(self._log)
            return [Refused(f"the program that asks it ended with exit code {ended}, see {log}")]
        return said

    def _keep(self, said: Iterable[Heard], now_s: float) -> None:
        """See to it that there is a child that answers, and never two: one that is stuck is waited for."""
        trial = self._trial
        if trial is None or self._memory.no_driver:
            return
        if any(isinstance(one, Reading) for one in said):
            self._pause_s = _AGAIN_S
        elif trial.again_s is None:
            self._give_up(trial, now_s)
        elif now_s >= trial.again_s and not trial.child.processes():
            try:
                self.begin()
            except OSError:  # a machine that is out of processes or of room: the alarm stands until a child answers
                self._trial = replace(trial, again_s=now_s + self._pause_s)

    def _give_up(self, trial: _Trial, now_s: float) -> None:
        ended = trial.child.ended
        stuck = now_s - trial.began_s > self._limits.silent_after_s < self._memory.silent_s
        if ended is None and not stuck:
            return
        if ended is None:  # beside the loop: a process that the kernel holds is waited for
            threading.Thread(target=trial.child.end, name="gpu-child-end", daemon=True).start()
        self._trial = replace(trial, again_s=now_s + self._pause_s)
        self._pause_s = min(2 * self._pause_s, _AGAIN_MAX_S)


# --- what the supervisor knows -----------------------------------------------------------------------


def _scene(state: State, now_s: float) -> Scene:
    live, left_out = state.live, frozenset(state.left_out)
    if live is None:
        return Scene(now_s, left_out=left_out)
    return Scene(
        now_s,
        left_out=left_out,
        attempt=live.number,
        roles={child.pid: child.role for child in live.children},
        settled=frozenset(child.role for child in live.children if _settled(child, live)),
        moving=live.phase in _MOVING_PHASES,
    )


def _settled(child: ChildOfRun, live: Live) -> bool:
    """It lives and is past its start: a service that answers, a trainer that has made a step."""
    if child.role in live.services:
        begun = child.role in live.ready
    else:
        begun = live.first_progress is not None and live.phase not in _MOVING_PHASES
    return begun and Identity(child.pid, child.start_ticks).alive
