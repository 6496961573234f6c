"""The defaults of the `Program` protocol: of every program, and of the programs that read a run.toml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.checkpoints import step_folders
from prime_train.checkpoints.cleanup import Keep
from prime_train.checkpoints.inventory import Places
from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.facts.run_folder import read_run_folder, read_step_times
from prime_train.facts.run_inputs import RunFolder
from prime_train.programs.run_toml import list_leftovers, open_run
from prime_train.spec import RunSpec
from prime_train.supervise.launch.environment import Host, Needs, gpu_order, python
from prime_train.supervise.launch.launch import Launch
from prime_train.supervise.launch.program import Config, Observer, Program, Role
from prime_train.supervise.launch.run_directory import Opened, Resume
from prime_train.supervise.watches.watch import Watch


@dataclass(frozen=True, slots=True)
class BaseProgram:
    """A program is stopped by SIGTERM and writes no events and no manifest, unless it overrides that."""

    name: str = ""
    stops_by_file: bool = False
    reports: bool = False
    shrinks: bool = False
    keeps_hashes: bool = False
    gpus_by_number: bool = False
    cured: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name

    def notes(self, run: RunSpec) -> tuple[str, ...]:
        del run
        return ()

    def plan_lines(self, run: RunSpec, resume_step: int) -> Sequence[tuple[str, str]]:
        del run, resume_step
        return ()

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        del run
        return ()

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Observer | None:
        del run, run_dir, attempt, resume_step
        return None

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        del run, run_dir
        return ()

    def places(self, run: RunSpec, run_dir: RunDir) -> Places:
        del run
        return Places(run_dir.path, (run_dir.checkpoints,))

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[Checkpoint]:
        places = self.places(run, run_dir)
        return step_folders.checkpoints(places.checkpoints, places.layout)


@dataclass(frozen=True, slots=True)
class RunTomlProgram(BaseProgram):
    """Base of the programs that read a run.toml. A program has at least a name, `roles` and `plan` of its own.

    By default it runs as many processes on as many GPUs as `parallel.processes` sets.
    """

    def refuse(self, config: Config) -> None:
        """Refuse a file that describes no training, because `run.program` may name this program there too."""
        if config.run.serves_only or config.run.launch is not None:
            raise UserError(
                what=f'run.program = "{self.name}", and the file describes no training by it',
                where=config.path,
                why="this program trains a run.toml with run.kind pretrain",
                fix="take run.program out",
            )

    def named(self, config: Config, run_name: str | None) -> tuple[RunSpec, RunDir]:
        """The run with the name in its file: --run-name is already written into the text."""
        del run_name
        run = config.run
        return run, RunDir((Path(run.run.dir).expanduser() / run.run.name).resolve())

    def write_dir(self, run: RunSpec, run_dir: RunDir) -> Path:
        del run
        return run_dir.path

    def run_folder(self, run: RunSpec, write_dir: Path) -> RunFolder:
        own = RunDir(write_dir.absolute())
        found, left = self.checkpoints(run, own), list_leftovers(own)
        return read_run_folder(own.path, found, left, step_times=read_step_times(own.metrics))

    def open_run(self, text: str, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
        return open_run(text, run, run_dir, self, resume)

    def configured(self, config: Config, run_dir: RunDir, *, writes: bool) -> Program:
        del config, run_dir, writes
        return self

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        return (Role("trainer", run.parallel.processes),)

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        raise NotImplementedError(f"{self.name} plans nothing")

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        del role, run, run_dir, attempt, host
        return Needs((*python(), gpu_order()))

    def keep(self, run: RunSpec) -> Keep:
        return Keep(run.checkpoint.keep_last, run.checkpoint.keep_every_steps, writing=False)
