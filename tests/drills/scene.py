"""A run in a folder of its own, under a supervisor in a process of its own. Judges nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import psutil

from prime_train.core.rundir import RunDir
from prime_train.events import Follower
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State
from prime_train.supervise.processes.process import find_run_processes
from prime_train.views.run.status import fold_events
from tests.drills.marks import Marks

PROGRAM = Path(sys.executable).with_name("prime-train")
REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Scene:
    """What is started where. `files` are laid into `folder` first."""

    folder: Path
    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    older: set[int] = field(default_factory=set)  # children that this process had before

    @property
    def run_dir(self) -> RunDir:
        return RunDir((self.folder / "runs" / "drill").resolve())

    @property
    def marks(self) -> Marks:
        return Marks(self.folder)

    def prepare(self) -> None:
        self.older.update(child.pid for child in psutil.Process().children(recursive=True))
        self.folder.mkdir(parents=True)
        for name, text in self.files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                (self.folder / name).chmod(0o755)

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """The supervisor. What of it is left at the end of the block is killed, and its trainer ends with it."""
        with open(self.folder / "said.txt", "ab") as said:
            process = subprocess.Popen(
                self.command, cwd=self.folder, env=os.environ | self.variables, stdout=said, stderr=said
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()

    def state(self) -> State:
        return fold_events(self.run_dir)

    def until(self, holds: Callable[[State], bool]) -> State:
        """The first state seen that satisfies `holds`."""
        for state in self.states():
            if holds(state):
                return state
            assert state.exit_code is None, f"it ended before: {state.reason}\n{self.log_text()}"
        raise AssertionError(f"not within {DEADLINE_S} s: {self.state()}\n{self.log_text()}")

    def states(self) -> Iterator[State]:
        """The state, as often as one looks, until the deadline.

        Thousands of events take a while to read, so mostly the new ones are folded. Two writers may then be out of
        order, so once a second all of them are.
        """
        give_up_s, whole_s = time.monotonic() + DEADLINE_S, 0.0
        follower, state = Follower(self.run_dir.events), State()
        while time.monotonic() < give_up_s:
            begun_s = time.process_time()
            if time.monotonic() > whole_s:
                follower, state, whole_s = Follower(self.run_dir.events), State(), time.monotonic() + 1.0
            state = reduce(fold, follower.stream(), state)
            yield state
            time.sleep(max(LOOK_S, 4 * (time.process_time() - begun_s)))

    def log_text(self) -> str:
        """What the supervisor printed."""
        return (self.folder / "said.txt").read_text(encoding="utf-8", errors="replace")

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run_dir.metrics.read_text(encoding="utf-8").splitlines()]

    def left(self) -> list[psutil.Process]:
        """Live processes that carry the run's mark, or became children of this process."""
        found = (process for process in find_run_processes(self.run_dir.path) if process.pid not in self.older)
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def trainer(state: State) -> int:
    """The pid of the live trainer."""
    assert state.live is not None, state
    return next(child.pid for child in state.live.children if child.role == "trainer")
