"""The Program protocol: everything the other packages need to know about one external program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prime_train.supervise.watches.watch import Watch

if TYPE_CHECKING:
    from prime_train.checkpoints.cleanup import Keep
    from prime_train.checkpoints.layout import SavedCheckpoint
    from prime_train.checkpoints.step_folders import StepPlaces
    from prime_train.config.parsed_config import Fault, Reading
    from prime_train.core.rundir import RunDir
    from prime_train.facts.facts import NotKnown, RunFolder
    from prime_train.spec import RunSpec
    from prime_train.supervise.core.state import State
    from prime_train.supervise.launch.launch import Host, Launch, Needs, Role
    from prime_train.supervise.launch.run_directory import Opened, Resume


@dataclass(frozen=True, slots=True)
class ProgramConfig:
    """The text of a config, and its RunSpec."""

    text: str
    path: str  # for messages
    run: RunSpec
    root: str = ""  # the command of the program that reads the file: "rl"; "" if there is only one


class Observer(Watch, Protocol):
    """A watch that writes the trainer's events for a program that writes none. It begins before the first process."""

    def end(self, state: State | None = None) -> None:
        """Called with `state` when all processes have ended, and without it when the attempt is judged."""


class Program(Protocol):
    """One external program, which `programs.program_of` chooses once per command.

    Only `open_run` and `configured` write files. A Program starts and deletes nothing.
    """

    @property
    def name(self) -> str:
        """The value of `run.program`, and the name of its folder in prime_train.programs."""

    @property
    def title(self) -> str:
        """Its name in messages."""

    # --- features ---

    @property
    def stops_by_file(self) -> bool:
        """It looks for RunDir.stop_request, saves and ends. Other programs get SIGTERM and may not save."""

    @property
    def reports(self) -> bool:
        """It writes events from its start, so silence before its first step has a meaning too."""

    @property
    def shrinks(self) -> bool:
        """It trains with the micro-batch of resolved.json, which the supervisor reduces when memory runs out."""

    @property
    def keeps_hashes(self) -> bool:
        """Its checkpoints have a manifest with a hash of every file."""

    @property
    def gpus_by_number(self) -> bool:
        """It reads numbers in CUDA_VISIBLE_DEVICES, not UUIDs."""

    @property
    def cured(self) -> tuple[str, ...]:
        """Codes of the rules whose faults its launch corrects."""

    # --- before a run ---

    def refuse(self, config: ProgramConfig) -> None:
        """Raise UserError for a config that this program cannot run under supervision."""

    def refusals(self, reading: Reading, python: str | None) -> tuple[Fault, ...] | NotKnown:
        """What the program that is installed here refuses in a config, for `validate`; none if none is installed.

        `python`: the interpreter from the command line. NotKnown names the one that could not be asked, and why.
        """

    def named(self, config: ProgramConfig, run_name: str | None) -> tuple[RunSpec, RunDir]:
        """The run that is supervised, and its directory. `run_name`: the name from the command line."""

    def write_dir(self, run: RunSpec, run_dir: RunDir) -> Path:
        """The folder that the rules about disk and folders check."""

    def run_folder(self, run: RunSpec, write_dir: Path) -> RunFolder:
        """The content of the folder that the run will write to, for `validate`. Raises OSError."""

    def open_run(self, text: str | None, run: RunSpec, run_dir: RunDir, resume: Resume) -> Opened:
        """Create the directory of a run, or open the existing one. Raises UserError if the run cannot continue.

        `text`: the config as written; if it is None, nothing is written.
        """

    def configured(self, config: ProgramConfig, run_dir: RunDir, *, writes: bool, only_shown: bool = False) -> Program:
        """The program with everything that `plan` needs. Raises UserError if it is not installed.

        `writes`: it may write an id into the run directory. `only_shown`: the plan is not carried out, so a program
        that is not installed is named in the plan instead.
        """

    def notes(self, run: RunSpec) -> tuple[str, ...]:
        """Messages for the user about how this program trains the run."""

    def plan_lines(self, run: RunSpec, resume_step: int) -> Sequence[tuple[str, str]]:
        """Label and text of the extra lines of `--dry-run`."""

    # --- an attempt ---

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        """The roles that use GPUs, in the order in which they get them."""

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        """The launches of an attempt, in order. Services come first, and later launches wait until they are ready."""

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        """The environment variables that one role needs."""

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        """Folders of its own logs, besides the logs of its launches."""

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Observer | None:
        """The observer that writes its events; None if it writes them itself."""

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        """Its own watches, besides those of the machine."""

    # --- files on disk ---

    def places(self, run: RunSpec, run_dir: RunDir) -> StepPlaces:
        """Where its per-step files are, and how to check that a checkpoint is complete."""

    def keep(self, run: RunSpec) -> Keep:
        """The files that must not be deleted while the run is stopped."""

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[SavedCheckpoint]:
        """Every checkpoint, newest first, each checked by the layout of `places`."""
