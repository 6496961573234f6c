"""torchtitan's stand-in as the supervisor sees it: it checkpoints its own way and writes no events."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from prime_train.checkpoints.folder_layout import FolderLayout, Marker
from prime_train.checkpoints.step_folders import StepPlaces, checkpoints
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, EventLog, Progress, TrainerFinished, TrainerStopped
from prime_train.programs.base import RunTomlProgram
from prime_train.spec import RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Launch, Observer, Role
from prime_train.supervise.watches.watch import Alarm

_TRAIN = Path(__file__).with_name("train.py")
_STEP = re.compile(r"step: +(\d+) +loss: +([\d.]+)")
_LAYOUT = FolderLayout(
    step=r"step-(\d+)",
    markers=(Marker((".metadata",), "no .metadata: the save did not finish"),),
    metadata=(".metadata",),
)


@dataclass(frozen=True, slots=True)
class Torchtitan(RunTomlProgram):
    name: str = "torchtitan"

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        return (Role("torchtitan", run.parallel.processes),)

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        numbers = (str(run.run.max_steps), str(run.checkpoint.interval_steps), str(resume_step))
        argv = (sys.executable, str(_TRAIN), str(self._folder(run_dir)), *numbers)
        return (Launch("torchtitan", argv, Path.cwd(), run_dir.log(attempt, "torchtitan")),)

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Observer:
        del resume_step
        return LogReader(self, run, run_dir, attempt)

    def places(self, run: RunSpec, run_dir: RunDir) -> StepPlaces:
        del run
        return StepPlaces(run_dir.path, (self._folder(run_dir),), _LAYOUT)

    def _folder(self, run_dir: RunDir) -> Path:
        return run_dir.path / "outputs" / "checkpoint"


PROGRAM = Torchtitan()


class LogReader:
    """Writes the trainer's kinds of events, out of the log and the checkpoint folder."""

    name = "torchtitan"

    def __init__(self, program: Torchtitan, run: RunSpec, run_dir: RunDir, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._log = run_dir.log(attempt, "torchtitan")
        self._places = program.places(run, run_dir)
        self._events = EventLog(run_dir.events, f"torchtitan-{attempt:03d}")
        self._read_bytes = 0
        self._saved = self._complete()
        self._last = (0, 0.0)

    def begin(self) -> None:
        """There is nothing to start: the log is read at each look."""

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del state, now_s
        self._follow()
        return ()

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self, state: State | None = None, returncode: int | None = None) -> None:
        del returncode
        if state is None:
            self._events.close()
            return
        self._follow()
        step, loss = self._last
        if self._log.read_text().rstrip().endswith("Training completed"):
            self._events.append(TrainerFinished(self._attempt, step, loss, ""))
        elif state.stop_requested_s is not None:
            self._events.append(TrainerStopped(self._attempt, max(self._saved, default=0)))

    def _follow(self) -> None:
        text = self._log.read_bytes()[self._read_bytes :] if self._log.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for step, loss in _STEP.findall(whole.decode()):
            self._last = (int(step), float(loss))
            self._events.append(Progress(self._attempt, int(step), float(loss), 1000.0, 0))
        for step in sorted(self._complete() - self._saved):
            self._saved |= {step}
            self._events.append(CheckpointSaved(self._attempt, step, 1, 0.0, 0.0))

    def _complete(self) -> set[int]:
        found = checkpoints(self._places.checkpoints, self._places.layout)
        return {checkpoint.step for checkpoint in found if checkpoint.complete}
