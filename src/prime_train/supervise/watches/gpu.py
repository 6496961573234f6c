"""Watches the GPUs of a run: has a child ask the driver, and judges what it says. Asks the driver nothing itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import psutil

from prime_train.backends import environment
from prime_train.rundir import RunDir
from prime_train.supervise.process import Identity
from prime_train.supervise.state import Live, State
from prime_train.supervise.watches.gpu_judge import judge, left_out
from prime_train.supervise.watches.gpu_memory import FOREIGN, Limits, Memory, Scene
from prime_train.supervise.watches.gpu_samples import Heard, Reading, Refused, heard
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
    """The GPU watch of one run. `answer` is the most that it asks for; `visible` as CUDA_VISIBLE_DEVICES of the run.

    Errors of its child go to watches/gpu.log in the run's directory.
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
        self._log = run_dir.path / "watches" / "gpu.log"
        self._kmsg = kmsg
        self._sampler = sampler
        self._clock = clock
        self._memory = Memory()
        self._trial: _Trial | None = None
        self._pause_s = _AGAIN_S

    def begin(self) -> None:
        """Start the child. Raises OSError where it cannot be started."""
        arguments = (str(self._limits.interval_s), str(self._kmsg), str(self._memory.log_sequence))
        child = self._sampler(_PROGRAM, arguments, self._log)
        child.begin()
        self._trial = _Trial(child, self._clock())

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:  # noqa: ARG002 - samples carry the monotonic clock
        """Everything that is wrong with the GPUs. What it takes from `state`: the live attempt and its processes."""
        lately_s = self._clock()
        said = self._heard()
        scene = _scene(state.live, said, self._run_dir, lately_s)
        self._memory, alarms = judge(self._memory, said, scene, self._limits)
        self._keep(said, lately_s)
        return alarms

    def processes(self) -> tuple[Identity, ...]:
        return self._trial.child.processes() if self._trial else ()

    def end(self) -> None:
        if self._trial is not None:
            self._trial.child.end()

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
            self.begin()

    def _give_up(self, trial: _Trial, now_s: float) -> None:
        ended = trial.child.ended
        stuck = now_s - trial.began_s > self._limits.silent_after_s < self._memory.silent_s
        if ended is None and not stuck:
            return
        if ended is None:  # beside the loop: a process that the kernel holds is waited for
            threading.Thread(target=trial.child.end, name="gpu-child-end", daemon=True).start()
        self._trial = _Trial(trial.child, trial.began_s, now_s + self._pause_s)
        self._pause_s = min(2 * self._pause_s, _AGAIN_MAX_S)


# --- what the supervisor knows -----------------------------------------------------------------------


def _scene(live: Live | None, said: Iterable[Heard], run_dir: RunDir, now_s: float) -> Scene:
    pids = {use.pid for one in said if isinstance(one, Reading) for gpu in one.gpus for use in gpu.uses or ()}
    if live is None:
        return Scene(now_s, owners=_owners(pids, {}, run_dir))
    roles = {child.pid: child.role for child in live.children}
    return Scene(
        now_s,
        attempt=live.number,
        owners=_owners(pids, roles, run_dir),
        settled=_settled(live),
        moving=live.phase in _MOVING_PHASES,
    )


def _settled(live: Live) -> frozenset[str]:
    """The roles that live and are past their start: a service that answers, a trainer that has made a step."""
    return frozenset(
        child.role
        for child in live.children
        if (child.role in live.ready if child.role in live.services else live.first_progress is not None)
        and Identity(child.pid, child.start_ticks).alive
    )


def _owners(pids: Iterable[int], roles: dict[int, str], run_dir: RunDir) -> dict[int, str]:
    return {pid: owner for pid in pids if (owner := _owner(pid, roles, run_dir)) is not None}


def _owner(pid: int, roles: dict[int, str], run_dir: RunDir) -> str | None:
    """The role that a process belongs to, FOREIGN, or None where there is none of this number."""
    try:
        process = psutil.Process(pid)
        for ancestor in (process, *process.parents()):
            if ancestor.pid in roles:
                return roles[ancestor.pid]
        marked = process.environ().get(environment.RUN) == str(run_dir.path)
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:  # another user's
        return FOREIGN
    return "run" if marked else FOREIGN
