"""The Program protocol: everything the other packages need to know about one external program, and what it starts.

Starts nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

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
    from prime_train.supervise.launch.run_directory import ChangedValue, Opened, Resume

SHIM = Path(__file__).with_name("shim.py")
TERMINAL = Path(__file__).with_name("terminal.py")  # starts a program on a terminal of its own
WRAPPERS = (str(TERMINAL),)
_GUARD_ARGV = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))


@dataclass(frozen=True, slots=True)
class Variable:
    """One addition to the environment of a child, and its reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """How to check that a service works: by its health and by one completion."""

    health_url: str
    completion_url: str
    model: str  # its name at the server
    limit_s: float  # from its start; a service that does not answer by then has failed
    has_tokenizer: bool = True  # without one, the prompt is a token id


@dataclass(frozen=True, slots=True)
class Launch:
    """One process tree: `variables` are added to the supervisor's own environment."""

    role: str
    argv: tuple[str, ...]
    cwd: Path
    log: Path
    variables: tuple[Variable, ...] = ()
    ready: ReadyCheck | None = None  # only of a service; the next launch waits until it is ready
    files: tuple[tuple[Path, str], ...] = ()  # written before it starts
    aside: tuple[Path, ...] = ()  # paths that must not exist when it starts; they are renamed


def add_guard(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command run by guard.py, which ends its whole tree if the supervisor dies.

    The guard is the child that events name. A launch without it is started below a guard too, and events name the
    program.
    """
    return (*_GUARD_ARGV, *argv)


def add_reporting_guard(argv: tuple[str, ...], report: int) -> tuple[str, ...]:
    """The command run by guard.py, which writes the identity of the program to the descriptor `report`.

    A command that has a guard already stays as it is.
    """
    if argv[: len(_GUARD_ARGV)] == _GUARD_ARGV:
        return argv
    return (*_GUARD_ARGV, "--report", str(report), str(os.getpid()), *argv)


def is_guard(command: str) -> bool:
    """Whether the command line, joined by spaces, is that of guard.py."""
    return command.startswith(" ".join(_GUARD_ARGV) + " ")


def to_json(launch: Launch) -> str:
    """The text of launch-ROLE.json. It holds only the additions to the environment, never inherited variables."""
    document = {
        "version": 1,
        "role": launch.role,
        "argv": list(launch.argv),
        "cwd": str(launch.cwd),
        "log": str(launch.log),
        # Only what is added here: the environment of the user may hold secrets in any variable.
        "variables": [{"name": v.name, "value": v.value, "reason": v.reason} for v in launch.variables],
    } | ({"ready": asdict(launch.ready)} if launch.ready is not None else {})
    if launch.files:
        document["files"] = [str(path) for path, _ in launch.files]
    if launch.aside:
        document["aside"] = [str(path) for path in launch.aside]
    return json.dumps(document, indent=1)


@dataclass(frozen=True, slots=True)
class Role:
    """One process tree of an attempt and the GPUs that it needs."""

    name: str
    gpus: int
    serves: bool = False  # a service: others wait for it, and the next attempt waits for its GPU memory
    least_gpus: int | None = None  # with which it still runs; None: it needs all of them


@dataclass(frozen=True, slots=True)
class Host:
    """The facts about the supervisor's process that the plan needs."""

    environment: Mapping[str, str]
    cores: int
    supervisor: str  # "PID:START_TICKS"
    open_files: tuple[int, int] | None = None  # soft and hard limit
    may_start: bool = True  # the interpreters that a config names, to ask for a version

    @property
    def given(self) -> dict[str, str]:
        """The variables that were set by hand. An empty value counts as not set."""
        return {name: value for name, value in self.environment.items() if value}


class EnvNote(NamedTuple):
    """A variable that the plan does not set, and why."""

    how: Literal["kept", "ignored", "left out", "passed on", "limit"]
    name: str
    value: str  # masked if it is a secret
    reason: str


@dataclass(frozen=True, slots=True)
class Needs:
    """The variables that one role needs. Values that were set by hand replace `wanted`, but not `forced`."""

    wanted: tuple[Variable, ...]
    forced: tuple[Variable, ...] = ()
    left_out: tuple[EnvNote, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramConfig:
    """The text of a config, and its RunSpec."""

    text: str
    path: str  # for messages
    run: RunSpec
    root: str = ""  # the command of the program that reads the file: "rl"; "" if there is only one


class Observer(Watch, Protocol):
    """A watch that writes the trainer's events for a program that writes none. It begins before the first process."""

    def end(self, state: State | None = None, returncode: int | None = None) -> None:
        """Called with `state` when all processes have ended, and without it when the attempt is judged.

        `returncode`: of the process whose exit ended the attempt; None if there was none.
        """


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
    def stop_signal(self) -> str:
        """The signal that asks it to save and end, if it does not stop by a file."""

    @property
    def stops_workers(self) -> bool:
        """That signal goes to the training processes below it, and not to itself."""

    @property
    def stops_after_save(self) -> bool:
        """It saves nothing on request, so the signal waits for its next checkpoint, for the grace at most."""

    @property
    def saves_by_file(self) -> bool:
        """It looks for RunDir.save_request, removes it, saves and goes on."""

    def fixed_changes(self, before: RunSpec, after: RunSpec) -> Iterable[ChangedValue]:
        """The changes that `open_run` refuses where there are checkpoints."""

    def aside(self, run: RunSpec) -> Literal["rename", "tracker", "none"]:
        """What is done with broken checkpoints that it would load, before an attempt (checkpoints/aside.py)."""

    def knows_checkpoints(self, run: RunSpec, run_dir: RunDir) -> bool:
        """Whether its checkpoints can be found. Otherwise nothing shows from which step an attempt goes on."""

    @property
    def must_stay(self) -> bool:
        """Its first process must live as long as the training: one that goes into the background is refused."""

    @property
    def is_mute(self) -> bool:
        """Nothing shows how far it is, so silence is no hang as long as its processes work."""

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
        """Create the directory of a run, or open the existing one.

        Raises UserError if the run cannot continue. `text`: the config as written; if it is None, nothing is written.
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

    def describe_search(self, run: RunSpec, run_dir: RunDir) -> str:
        """For a run without a checkpoint: what was looked for, and where."""


class Context(NamedTuple):
    """The run, and what its watches need to know about it."""

    run: RunSpec
    run_dir: RunDir
    program: Program
