"""One run of a real trainer that meets every fault, each by an event and none by the clock, and what followed.

    python -m tests.drills.trainer_faults PYTHON [NAME...]

prints a table of trainer and fault. `PYTHON` has the packages; NAME is one of tests/system/programs/command/scripts.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, CheckpointUnreadable, Event, LaunchAsked, read
from tests.system.programs.command.commands import Supervised, list_marked
from tests.system.programs.command.scripts import EVERY, SCRIPTS, TrainerScript
from tests.unit.cli.commands import wait_until

# Fault -> the cause class of the attempt that ends by it, "" for a stop, and the whole checkpoints that it takes.
FAULTS: Mapping[str, tuple[str, int]] = {
    "kill of a rank": ("signal", 0),
    "kill in a save": ("signal", 0),
    "rank stopped": ("hang", 0),
    "sleep in a step": ("hang", 0),
    "foreign SIGTERM": ("unknown", 0),  # most exit with 0, which explains nothing
    "supervisor killed, newest cut": ("signal", 1),
    "SIGTERM to the supervisor": ("", 0),
    "full disk": ("disk", 0),
}
HARMS = tuple(FAULTS)[:5]  # each independent of the others; what comes after them ends a supervisor
PACKAGE = Path(__file__).parents[2] / "src"
_SLOW_S = "0.3"  # a step takes so long while faults come
_SETTINGS = ("prime_train.restart.backoff_s=0.1", "prime_train.heartbeat.step_limit_s=15")
_VARIABLES = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Followed(NamedTuple):
    """What followed a fault.

    `last_step`: of the script before it. `resumed_from`: by the first step that the script made next, and `named` by
    the supervisor.
    """

    fault: str
    cause: str
    what: str
    last_step: int
    resumed_from: int
    named: int


@dataclass
class Trial:
    """A run of one trainer in a folder of its own."""

    script: TrainerScript
    python: str
    folder: Path
    library: Path
    followed: list[Followed] = field(default_factory=list)
    _pending: tuple[str, int] = ("", 0)  # the latest fault, and the steps that were made before the next attempt

    def __post_init__(self) -> None:
        for name in ("whole", "work"):
            (self.folder / name / "disk" / "out").mkdir(parents=True)
            (self.folder / name / "train.py").write_text(self.script.text)
            (self.folder / name / "pace").write_text("0")
        self.work = self.folder / "work"

    # --- what is started ---

    @property
    def command(self) -> tuple[str, ...]:
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(self.script.ranks))
        return (self.python, *(launcher if self.script.ranks > 1 else ()), "train.py")

    def train_whole(self) -> str:
        """The hash of the weights without any fault and without a supervisor."""
        folder = self.folder / "whole"
        environment = os.environ | _VARIABLES | {"PYTHONPATH": str(PACKAGE)}
        subprocess.run(self.command, cwd=folder, env=environment, check=True, capture_output=True)
        return (folder / "final.txt").read_text()

    def supervise(self) -> Supervised:
        own = {name: str(self.work / name.lower()) for name in ("CUT_FULL", "CUT_HOLD", "CUT_HELD")}
        own |= {
            "CUT_BELOW": str(self.work / "disk"),
            "TMPDIR": str(self.work / "disk"),
            "LD_PRELOAD": str(self.library),
        }
        env = [f"{name}={value}" for name, value in (_VARIABLES | own).items()]
        settings = (*_SETTINGS, *self.script.settings, f"command.env={json.dumps(env)}")
        options = [word for setting in settings for word in ("--set", setting)]
        return Supervised(self.work, *options, "--", *self.command)

    # --- what is seen ---

    @property
    def run_dir(self) -> RunDir:
        (path,) = (self.work / "runs").iterdir()
        return RunDir(path.resolve())

    def events(self) -> list[Event]:
        return [record.event for record in read(self.run_dir.events)]

    def ends(self) -> list[AttemptEnded]:
        return [event for event in self.events() if isinstance(event, AttemptEnded)]

    def steps(self) -> list[int]:
        """The steps in their order, over all attempts: what the script itself wrote down."""
        path = self.work / "steps"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def await_steps(self, supervised: Supervised, count: int) -> None:
        """Wait until so many more steps are made."""
        at = len(self.steps()) + count
        wait_until(lambda: supervised.process.poll() is not None or len(self.steps()) >= at)
        assert supervised.process.poll() is None, supervised.process.communicate()

    def note_next(self, supervised: Supervised | None = None) -> None:
        """Note what followed the latest fault. `supervised`: wait for the first step after it."""
        fault, at = self._pending
        if supervised is not None:
            self.await_steps(supervised, at + 1 - len(self.steps()))
        events, steps = self.events(), self.steps()
        launch = next(event for event in reversed(events) if isinstance(event, LaunchAsked))
        # A checkpoint that only its load shows to be broken costs an attempt, which does not end by the fault.
        unread = sum(isinstance(event, CheckpointUnreadable) for event in events) if fault.endswith("cut") else 0
        end = next(end for end in self.ends() if end.attempt == launch.attempt - 1 - unread)
        known = (end.cause_class, end.what, steps[at - 1], steps[at] - 1, launch.resume_step)
        self.followed.append(Followed(fault, *known))

    def strike(self, supervised: Supervised, fault: str, harm: Callable[[], None]) -> None:
        """Harm the attempt after its next checkpoint, and wait for the first step of the attempt that follows."""
        self.await_steps(supervised, EVERY + 1)
        ended = len(self.ends())
        harm()
        wait_until(lambda: supervised.process.poll() is not None or len(self.ends()) > ended)
        self._pending = (fault, len(self.steps()))
        self.note_next(supervised)

    # --- faults ---

    def ranks(self) -> list[int]:
        return [int((self.work / f"rank{rank}.pid").read_text()) for rank in range(self.script.ranks)]

    def kill(self) -> None:
        os.kill(self.ranks()[-1], signal.SIGKILL)

    def kill_in_save(self) -> None:
        """Hold a save after half of a write, and kill every rank there."""
        held = self.work / "cut_held"
        (self.work / "cut_hold").touch()
        wait_until(held.exists)
        (self.work / "cut_hold").unlink()
        held.unlink()
        for pid in self.ranks():
            os.kill(pid, signal.SIGKILL)

    def stop_rank(self) -> None:
        os.kill(self.ranks()[-1], signal.SIGSTOP)

    def nap(self) -> None:
        (self.work / "nap").touch()

    def terminate(self) -> None:
        os.kill(self.ranks()[0], signal.SIGTERM)

    def cut_newest(self) -> None:
        """Cut the largest file of the newest checkpoint, as a power cut does."""
        found = (self.work / "disk" / "out").glob(self.script.saved)
        newest = max(found, key=lambda path: int("".join(filter(str.isdigit, path.name.rpartition("step=")[2]))))
        files = [newest] if newest.is_file() else [file for file in newest.rglob("*") if file.is_file()]
        largest = max(files, key=lambda file: file.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)

    # --- the lives of the run ---

    def live(self, harms: Sequence[str] = HARMS) -> str:
        """These harms and every later fault, in their order. Returns the hash of the last weights."""
        (self.work / "pace").write_text(_SLOW_S)
        self._live_harmed(harms)
        self._live_cut()
        self._live_full()
        (self.work / "pace").write_text("0")
        last = self.supervise()
        try:
            code, err = last.await_end()
        finally:
            last.kill()
        assert code == ExitCode.OK, err
        self.note_next()
        return (self.work / "final.txt").read_text()

    def _live_harmed(self, harms: Sequence[str]) -> None:
        each = (self.kill, self.kill_in_save, self.stop_rank, self.nap, self.terminate)
        supervised = self.supervise()
        try:
            for fault, harm in zip(HARMS, each, strict=True):
                if fault in harms:
                    self.strike(supervised, fault, harm)
            self.await_steps(supervised, EVERY + 1)
        finally:
            supervised.kill()
        wait_until(lambda: not list_marked(self.run_dir))
        self._pending = ("supervisor killed, newest cut", len(self.steps()))

    def _live_cut(self) -> None:
        self.cut_newest()
        supervised = self.supervise()
        try:
            self.note_next(supervised)
            self.await_steps(supervised, EVERY)
            supervised.process.send_signal(signal.SIGTERM)
            code, err = supervised.await_end()
        finally:
            supervised.kill()
        assert code == ExitCode.RESUMABLE, err
        self._pending = ("SIGTERM to the supervisor", len(self.steps()))

    def _live_full(self) -> None:
        """The disk of the checkpoints is full, and has room again for the next life."""
        supervised = self.supervise()
        try:
            self.note_next(supervised)
            self.await_steps(supervised, EVERY)
            (self.work / "cut_full").touch()
            code, err = supervised.await_end()
        finally:
            supervised.kill()
        assert code == ExitCode.RUN_FAILED, err
        (self.work / "cut_full").unlink()
        self._pending = ("full disk", len(self.steps()))


def build_library(folder: Path) -> Path:
    made = folder / "cut_writes.so"
    source = Path(__file__).with_name("cut_writes.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


def main() -> None:
    python, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        library = build_library(Path(name))
        for script in SCRIPTS:
            if names and script.name not in names:
                continue
            trial = Trial(script, python, Path(name) / script.name, library)
            try:
                ended = "equal weights" if trial.train_whole() == trial.live() else "other weights"
            except AssertionError as error:
                ended = f"not to its end: {error}"
            for one in trial.followed:
                sys.stdout.write(" | ".join(map(str, (script.name, *one))) + "\n")
            sys.stdout.write(f"{script.name} | {ended}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
