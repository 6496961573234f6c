"""The Program protocol: everything the other packages need to know of one external program that trains or serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prime_train.supervise.watches.watch import Watch

if TYPE_CHECKING:
    from prime_train.checkpoints.cleanup import Keep
    from prime_train.checkpoints.inventory import Places
    from prime_train.checkpoints.layout import Checkpoint
    from prime_train.core.rundir import RunDir
    from prime_train.facts.run_inputs import RunFolder
    from prime_train.spec import RunSpec
    from prime_train.supervise.launch.environment import Host, Needs
    from prime_train.supervise.launch.launch import Launch
    from prime_train.supervise.launch.run_directory import Opened, Resume
    from prime_train.supervise.state import State


@dataclass(frozen=True, slots=True)
class Config:
    """A config as written, and what was read from it."""

    text: str
    path: str  # for messages
    run: RunSpec
    root: str = ""  # which command of its program reads the file: "rl"; "" where the program has only one


@dataclass(frozen=True, slots=True)
class Role:
    """One process tree of an attempt, and what it takes."""

    name: str
    gpus: int
    serves: bool = False  # it is a service: others wait for it, and its GPU memory must be free before the next attempt


class Observer(Watch, Protocol):
    """A watch that writes the trainer's kinds of events for a program that writes none itself.

    It begins before the first process starts.
    """

    def end(self, state: State | None = None) -> None:
        """With `state`: all processes are gone, and the attempt is judged after this. Without: it has been judged."""


class Program(Protocol):
    """One external program. `programs.program_of` chooses it once per command; every other package gets it from there.

    A `Program` starts, writes and deletes nothing but in `open_run` and `configured`.
    """

    @property
    def name(self) -> str:
        """Its folder in prime_train.programs, and the value of `run.program`."""

    @property
    def title(self) -> str:
        """Its name in messages."""

    # --- how it behaves ---

    @property
    def stops_by_file(self) -> bool:
        """It looks for RunDir.stop_request, saves and ends. Otherwise it gets SIGTERM and may not save."""

    @property
    def reports(self) -> bool:
        """It writes events from its start on, so that silence means something before its first step too."""

    @property
    def shrinks(self) -> bool:
        """It trains with the micro-batch of resolved.json, which the supervisor halves where memory runs out."""

    @property
    def keeps_hashes(self) -> bool:
        """Its checkpoints have a manifest with a hash of every file."""

    @property
    def gpus_by_number(self) -> bool:
        """It reads numbers in CUDA_VISIBLE_DEVICES, not UUIDs."""

    @property
    def cured(self) -> tuple[str, ...]:
        """Codes of rules about faults that its own launch repairs."""

    # --- before a run ---

    def refuse(self, config: Config) -> None:
        """Raise UserError for a config that this program does not run under supervision."""

    def named(self, config: Config, run_name: str | None) -> tuple[RunSpec, RunDir]:
        """The run as it will be supervised, and its directory. `run_name`: the name that the command line gives."""

    def write_dir(self, run: RunSpec, run_dir: RunDir) -> Path:
        """The folder that the rules about disk and folders judge."""

    def run_folder(self, run: RunSpec, write_dir: Path) -> RunFolder:
        """What is in the folder that the run will write to, for `validate`. Raises OSError."""

    def open_run(self, text: str, run: RunSpec, run_dir: RunDir, resume: Resume) -> Opened:
        """Create the directory of a run, or go on in it. Raises UserError where the run cannot go on."""

    def configured(self, config: Config, run_dir: RunDir, *, writes: bool) -> Program:
        """The program with all that `plan` needs. Raises UserError where it is not installed.

        `writes`: it may keep an id of its own in the run directory.
        """

    def notes(self, run: RunSpec) -> tuple[str, ...]:
        """What a person should know of how this program trains the run."""

    def plan_lines(self, run: RunSpec, resume_step: int) -> Sequence[tuple[str, str]]:
        """Label and text of what `--dry-run` shows beside the launches."""

    # --- an attempt ---

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        """Who takes GPUs, in the order in which the GPUs are given out."""

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        """What an attempt starts, in order. Services come first, and what follows waits until they answer."""

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        """What one role needs in its environment."""

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        """Folders in which it writes logs of its own, beside those that its launches name."""

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Observer | None:
        """What writes events for it; None where it writes them itself."""

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        """Watches beside those of the machine, as the config asks for them."""

    # --- what it leaves on disk ---

    def places(self, run: RunSpec, run_dir: RunDir) -> Places:
        """Where it keeps what grows with its steps, and when a checkpoint is complete."""

    def keep(self, run: RunSpec) -> Keep:
        """What must stay on disk while the run does not run."""

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[Checkpoint]:
        """Every checkpoint, newest first, each judged by the layout of `places`."""
