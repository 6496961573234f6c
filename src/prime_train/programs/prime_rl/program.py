"""prime-rl as a `Program`. Starts nothing."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from prime_train.checkpoints import folder_layout, step_folders
from prime_train.checkpoints.cleanup import READ_AT_ONCE, Keep
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.config.parsed_config import Fault, Reading
from prime_train.config.prime_rl import read as prime_rl
from prime_train.config.prime_rl.schema import features_of
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.facts import installed_prime_rl
from prime_train.facts.facts import NotKnown, RunFolder, StepFolder
from prime_train.facts.previous_run import read_run_folder, times_between
from prime_train.programs.base import BaseProgram
from prime_train.programs.prime_rl import launcher as installed
from prime_train.programs.prime_rl import run_directory
from prime_train.programs.prime_rl.launcher import Launcher, compute_stop_grace_s, count_gpus, needs
from prime_train.programs.prime_rl.observer import PrimeRlObserver
from prime_train.programs.prime_rl.run_directory import ROLE, ROOTS
from prime_train.programs.prime_rl.settings import prepare_run
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.supervise.launch.program import Host, Launch, Needs, ProgramConfig, Role
from prime_train.supervise.launch.run_directory import ChangedValue, Opened, Resume

# Faults that the copy of the config repairs: no name, no checkpoints, cleaning, a folder of the run's earlier start.
_CURED = ("RUN004", "RES001", "RES002", "RES005", "RES008", "CKP003", "CKP004", "CKP005")
_UNNAMED = "prime-rl"
# Names that prime-rl ignores in a run directory. Source: prime-rl 2026-08, entrypoints/rl.py, validate_run_dir.
_NO_LEFTOVER = re.compile(r"configs|rl\.sbatch|sft\.sbatch|job_.*\.log")


@dataclass(frozen=True, slots=True)
class PrimeRlProgram(BaseProgram):
    """prime-rl, by its own launcher. `launcher` is None until `configured` has found it on this machine."""

    name: str = "prime_rl"
    gpus_by_number: bool = True
    cured: tuple[str, ...] = _CURED
    launcher: Launcher | None = None

    @property
    def title(self) -> str:
        return "prime-rl"

    # --- before a run ---

    def refuse(self, config: ProgramConfig) -> None:
        """Refuse a config of one part, of SLURM, or of a dry run."""
        launch, shown = prime_rl_of(config.run).launch, shlex.quote(config.path)
        if config.run.prime_rl is None:
            raise UserError(
                what='run.program = "prime_rl", and the file is a run.toml',
                where=config.path,
                why="prime-rl reads its own config files",
                fix="take run.program out; or write a config for rl or sft",
            )
        if config.root not in ROOTS:
            raise _create_part_error(config)
        if launch.slurm:
            raise UserError(
                what="it has a [slurm] table",
                where=config.path,
                why="prime-rl only submits such a run: SLURM starts its processes on other machines",
                fix=f"in prime-rl: uv run {config.root} @ {shown}; take [slurm] out to run it on this machine",
            )
        if launch.dry_run:
            raise UserError(
                what="dry_run = true",
                where=config.path,
                why="prime-rl then writes or deletes in output_dir, and trains nothing",
                fix=f"take it out; `prime-train run {shown} --dry-run` shows the plan and writes nothing",
            )

    def refusals(self, reading: Reading, python: str | None) -> tuple[Fault, ...] | NotKnown:
        """What the classes of the installed prime-rl refuse."""
        if reading.dialect != prime_rl.DIALECT or reading.run is None:
            return ()
        launch = prime_rl_of(reading.run).launch
        interpreter = python or launch.python
        if interpreter is None:
            try:
                found = installed.find_launcher(reading.root, None, os.environ, Path.cwd(), reading.document.path)
            except UserError:
                return ()
            interpreter = str(found.with_name("python"))
        values = {key: value for key, value in reading.document.values.items() if key != prime_rl.OWN_TABLE}
        answered = installed_prime_rl.ask(str(Path(interpreter).expanduser()), reading.root, values)
        if isinstance(answered, NotKnown):
            return NotKnown(f"{interpreter} was not asked what its prime-rl refuses: {answered.reason}")
        return tuple(installed_prime_rl.faults(answered, reading))

    def named(self, config: ProgramConfig, run_name: str | None) -> tuple[RunSpec, RunDir]:
        """The run with its name and folders fixed, and its directory in prime-train."""
        run = prepare_run(config.run, run_name or _choose_name(config.run, config.path), Path.cwd())
        grace_s = max(run.prime_train.stop_grace_s, compute_stop_grace_s(run))
        run = replace(run, prime_train=replace(run.prime_train, stop_grace_s=grace_s))
        return run, RunDir((Path(run.run.dir).expanduser() / run.run.name).resolve())

    def write_dir(self, run: RunSpec, run_dir: RunDir) -> Path:
        return run_directory.find_folder(run)

    def run_folder(self, run: RunSpec, write_dir: Path) -> RunFolder:
        path = write_dir.absolute()
        places = run_directory.list_places(run, path)
        found = step_folders.checkpoints(places.checkpoints, places.layout)
        return read_run_folder(path, found, _list_leftovers(run, path), _find_target(run), times_between(found))

    def open_run(self, text: str | None, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
        return run_directory.open_run(text, run, run_dir, resume)

    def fixed_changes(self, before: RunSpec, after: RunSpec) -> Iterator[ChangedValue]:
        return run_directory.list_changes(before, after)

    def configured(
        self, config: ProgramConfig, run_dir: RunDir, *, writes: bool, only_shown: bool = False
    ) -> PrimeRlProgram:
        """prime-rl as installed here. Raises UserError if it is not. `writes`: the run's id may be kept."""
        python, missing = prime_rl_of(config.run).launch.python, ""
        try:
            found = installed.find_launcher(config.root, python, os.environ, Path.cwd(), config.path)
        except UserError as error:
            if not only_shown:
                raise
            found, missing = Path(config.root), f"{error.what}; it is shown as {config.root}"
        return PrimeRlProgram(
            launcher=Launcher(
                text=config.text,
                before=config.run,
                root=config.root,
                installed=found,
                run_id=run_directory.run_id(run_dir, os.environ, writes=writes),
                path=os.environ.get("PATH", os.defpath),
                cwd=Path.cwd(),
                missing=missing,
            )
        )

    def notes(self, run: RunSpec) -> tuple[str, ...]:
        """The changes in its copy of the config, and features that prime-rl does not have."""
        settings = (setting for setting in self._configured().settings(run, 0) if setting.is_notable)
        interval = run.checkpoint.interval_steps
        no_effect = 'prime_train.recovery.on_oom = "shrink" changes nothing: prime-rl has no micro-batch'
        return (
            *(f"{setting.text} for this run: {setting.reason}" for setting in settings),
            f"prime-rl saves nothing when it is stopped: it saves a checkpoint every {interval} steps",
            *((no_effect,) if run.prime_train.recovery.on_oom == "shrink" else ()),
        )

    def plan_lines(self, run: RunSpec, resume_step: int) -> tuple[tuple[str, str], ...]:
        """Where prime-rl writes, and what is set in the copy of its config."""
        grace_s = run.prime_train.stop_grace_s
        launcher = self._configured()
        settings = launcher.settings(run, resume_step)
        missing = launcher.missing
        return (
            *((("not installed", missing),) if missing else ()),
            ("prime-rl writes", str(run_directory.find_folder(run))),
            *(("set in a copy", f"{setting.text}   # {setting.reason}") for setting in settings),
            ("when it stops", f"SIGTERM to the launcher, which saves nothing; {grace_s:g} s to end"),
        )

    # --- an attempt ---

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        return (Role(ROLE, count_gpus(run)),)

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        return self._configured().plan(run, run_dir, attempt, resume_step)

    def _configured(self) -> Launcher:
        if self.launcher is None:
            raise ValueError("`configured` finds the launcher, and comes before a plan")
        return self.launcher

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        vllm = features_of(run).vllm if run.inference is not None else None
        return needs(run_dir, attempt, host, vllm)

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        return (run_directory.find_folder(run) / "logs", run_directory.find_folder(run) / "torchrun")

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> PrimeRlObserver:
        return PrimeRlObserver(run, run_dir, attempt, resume_step)

    # --- what it leaves on disk ---

    def places(self, run: RunSpec, run_dir: RunDir) -> StepPlaces:
        return run_directory.list_places(run, run_directory.find_folder(run))

    def keep(self, run: RunSpec) -> Keep:
        """A foreign launcher may be writing, so unfinished folders are deleted only when nothing writes to them."""
        parts = prime_rl_of(run)
        behind = (parts.rollout.max_async_level if parts.rollout is not None else None) or 0
        keep_last = parts.saving.keep_last if parts.saving is not None else None
        return Keep(keep_last, run.checkpoint.keep_every_steps, broadcasts=READ_AT_ONCE + behind, writing=True)


PROGRAM = PrimeRlProgram()


def _create_part_error(config: ProgramConfig) -> UserError:
    own = config.root if config.root in ("trainer", "orchestrator", "inference") else "COMMAND"
    generation = prime_rl_of(config.run).launch.generation
    return UserError(
        what=f"it is a config of one part of a run of prime-rl {generation or ''} ({config.root})",
        where=config.path,
        why="this command starts the bundled trainer, which reads run.toml, or a whole run of prime-rl: rl or sft",
        fix=f"in prime-rl: uv run {own} @ {shlex.quote(config.path)}, without [prime_train]; "
        "prime-train lint and estimate read it",
    )


def _choose_name(run: RunSpec, path: str) -> str:
    """The name in the config, else that of its output folder, else that of the file."""
    launch = prime_rl_of(run).launch
    if launch.run_name:
        return launch.run_name
    if launch.output_dir and not features_of(run).names_runs and Path(launch.output_dir).name:
        name = Path(launch.output_dir).name
        if name != "outputs":
            return name
    file = Path(path).absolute()
    if not file.exists():  # standard input
        return _UNNAMED
    return file.stem if file.stem not in ROOTS else f"{file.parent.name}-{file.stem}"


# --- what is in its folder ---------------------------------------------------------------------------


def _list_leftovers(run: RunSpec, path: Path) -> tuple[str, ...]:
    """The names that an earlier run left. A run without a name gets a directory of its own."""
    launch = prime_rl_of(run).launch
    if not features_of(run).names_runs or not (launch.run_name or launch.run_dir) or not path.is_dir():
        return ()
    return tuple(sorted(item.name for item in path.iterdir() if not _NO_LEFTOVER.fullmatch(item.name)))


def _find_target(run: RunSpec) -> StepFolder | None:
    """The checkpoint folder in resume.dir."""
    parts = prime_rl_of(run)
    if parts.resume is None or parts.resume.dir is None:
        return None
    folder = Path(parts.resume.dir).absolute()
    form = run_directory.list_places(run, folder).layout
    step = folder_layout.step_of(folder, form)
    if not folder.is_dir():
        return StepFolder(-1 if step is None else step, folder, "there is no such folder")
    if step is None:
        return StepFolder(-1, folder, "its name is not step_N")
    return StepFolder(step, folder, step_folders.problem([folder], form))
