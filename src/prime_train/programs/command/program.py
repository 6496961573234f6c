"""A command as a `Program`: any trainer, by its command line. Starts nothing."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prime_train import live
from prime_train.checkpoints.cleanup import Keep
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.live_report import RESUME
from prime_train.programs import base
from prime_train.programs.base import RunTomlProgram
from prime_train.programs.command.describe import describe_search, describe_trainer
from prime_train.programs.command.folder_lock import hold_folder
from prime_train.programs.command.observer import ROLE, CommandObserver, live_folder
from prime_train.programs.command.packed_resume import refuse_packed
from prime_train.programs.command.refusals import refuse_missing, refuse_pattern, refuse_secrets
from prime_train.programs.command.trainer import KnownTrainer, know_run, trainer_of
from prime_train.spec import RunSpec
from prime_train.supervise.launch.program import TERMINAL, Host, Launch, Needs, Program, ProgramConfig, Variable
from prime_train.supervise.launch.run_directory import Opened, Resume

INJECTED = Path(live.__file__).with_name("injected")


@dataclass(frozen=True, slots=True)
class CommandProgram(RunTomlProgram):
    """Any trainer. How it stops, and whether its steps can be seen, is known when it is `configured`."""

    name: str = "command"
    must_stay: bool = True

    @property
    def title(self) -> str:
        return "the command"

    # --- before a run ---

    def refuse(self, config: ProgramConfig) -> None:
        """Refuse a file without a command, a secret in it, and an expression that names no step."""
        command = config.run.command
        if command is None:
            raise UserError(
                what='run.program = "command", and the file has no [command]',
                where=config.path,
                why="this program starts the command line in command.argv",
                fix='run.kind = "command" with a [command] table; or take run.program out',
            )
        refuse_secrets(command.argv, command.env, config.path)
        refuse_pattern(command.progress.log, config.path)
        trainer_of(_absolute(config.run))  # raises for a profile or layout that does not exist

    def named(self, config: ProgramConfig, run_name: str | None) -> tuple[RunSpec, RunDir]:
        """The run with an absolute working directory: the folders of the trainer must not depend on the next one."""
        run = _absolute(config.run)
        return run, RunDir((Path(run.run.dir).expanduser() / run.run.name).resolve())

    def open_run(self, text: str | None, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
        """As for every run.toml. Raises UserError also if another run writes into the same folder."""
        folder = trainer_of(run).checkpoints
        if text is not None and folder is not None and not hold_folder(folder):
            raise UserError(
                what="another supervised run writes into the same folder",
                where=str(folder),
                why="each of the two would resume from the checkpoints of the other, and delete them",
                fix="give this run a folder of its own; prime-train status shows the runs of this folder",
            )
        if resume == "auto":
            refuse_packed(self.places(run, run_dir), self.checkpoints(run, run_dir), run_dir)
        return base.open_run(text, run, run_dir, self, resume)

    def configured(self, config: ProgramConfig, run_dir: RunDir, *, writes: bool, only_shown: bool = False) -> Program:
        """The program as this command stops it. Raises UserError if the command cannot be started."""
        trainer = trainer_of(_absolute(config.run))
        if not only_shown:
            refuse_missing(trainer)
        stop = trainer.stop
        return replace(
            self,
            stops_by_file=stop.how == "file",
            stop_signal=stop.signal,
            stops_workers=stop.to == "workers",
            stops_after_save=stop.how == "none" and trainer.layout is not None,
            is_mute=not trainer.shows_steps,
        )

    def notes(self, run: RunSpec) -> tuple[str, ...]:
        return tuple(f"{label}: {text}" for label, text in describe_trainer(trainer_of(run), run))

    def plan_lines(self, run: RunSpec, resume_step: int) -> Sequence[tuple[str, str]]:
        return describe_trainer(trainer_of(run), run)

    # --- an attempt ---

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        trainer = know_run(run, run_dir)
        found = self.checkpoints(run, run_dir)
        saved = next((str(checkpoint.path) for checkpoint in found if checkpoint.step == resume_step), "")
        words, variables = _ask_resume(trainer, saved, resume_step)
        wrapper = (sys.executable, "-I", "-S", str(TERMINAL)) if trainer.command.terminal else ()
        given = (entry.partition("=") for entry in trainer.command.env)
        own = (Variable(name, value, "command.env") for name, _, value in given)
        return (
            Launch(
                role=ROLE,
                argv=(*wrapper, *trainer.command.argv, *words),
                cwd=trainer.cwd,
                log=run_dir.log(attempt, ROLE),
                variables=(*own, *variables, *_add_live(trainer, run_dir, attempt, resume_step)),
                files=((live_folder(run_dir, attempt) / RESUME, saved),),
            ),
        )

    def knows_checkpoints(self, run: RunSpec, run_dir: RunDir) -> bool:
        trainer = know_run(run, run_dir)
        return trainer.checkpoints is not None and bool(trainer.layouts)

    def aside(self, run: RunSpec) -> Literal["rename", "tracker", "none"]:
        return trainer_of(run).resume.aside

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        wanted = (
            Variable("PYTHONUNBUFFERED", "1", "a line is seen when it is printed, and not when 8 KiB are full"),
            Variable("PYTHONFAULTHANDLER", "1", "a segmentation fault, or a hang that is ended, leaves its stacks"),
        )
        python = trainer_of(run).command.python
        if not python:
            return Needs(wanted)
        folder = Path(python).expanduser().parent
        path = f"{folder}{os.pathsep}{host.environment.get('PATH', os.defpath)}"
        return Needs(wanted, (Variable("PATH", path, "python, torchrun and accelerate are those of command.python"),))

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> CommandObserver:
        return CommandObserver(run, run_dir, attempt, resume_step)

    # --- files on disk ---

    def write_dir(self, run: RunSpec, run_dir: RunDir) -> Path:
        return run_dir.path

    def places(self, run: RunSpec, run_dir: RunDir) -> StepPlaces:
        """The folder of its checkpoints; in an unknown layout a folder without any, so that none is judged."""
        trainer = know_run(run, run_dir)
        if trainer.checkpoints is None or trainer.layout is None:
            return StepPlaces(run_dir.path, (run_dir.checkpoints,), outputs=(trainer.checkpoints or trainer.cwd,))
        temporary = (_find_temporary(trainer.command.env),) if trainer.layout.temporary else ()
        return StepPlaces(run_dir.path, (trainer.checkpoints,), trainer.layout, temporary=temporary)

    def describe_search(self, run: RunSpec, run_dir: RunDir) -> str:
        return describe_search(know_run(run, run_dir))

    def keep(self, run: RunSpec) -> Keep:
        """A trainer may be writing, so unfinished folders are deleted only when nothing writes to them.

        It loads what it likes, so one more whole checkpoint stays than a resume needs.
        """
        return Keep(trainer_of(run).command.checkpoints.keep_last, least_whole=2, writing=True)


PROGRAM = CommandProgram()


def _absolute(run: RunSpec) -> RunSpec:
    assert run.command is not None, "`refuse` comes first"
    cwd = Path(run.command.cwd).expanduser().absolute()
    return replace(run, command=replace(run.command, cwd=os.path.normpath(cwd)))


def _find_temporary(env: Sequence[str]) -> Path:
    """The folder for the temporary files of the command: its own TMPDIR, or that of prime-train."""
    given = next((entry.partition("=")[2] for entry in env if entry.startswith("TMPDIR=")), "")
    return Path(given or tempfile.gettempdir())


# --- resume -----------------------------------------------------------------------------------------


def _ask_resume(trainer: KnownTrainer, saved: str, resume_step: int) -> tuple[tuple[str, ...], tuple[Variable, ...]]:
    """The words and the variables that make the trainer go on from `saved`; nothing where it finds it otherwise."""
    if not saved or trainer.resumes_by_live or trainer.resume.how not in ("argument", "variable"):
        return (), ()
    values = {"{path}": saved, "{step}": str(resume_step), "{dir}": str(trainer.checkpoints)}

    def fill(text: str) -> str:
        return re.sub(r"\{(?:path|step|dir)\}", lambda match: values[match[0]], text)

    if trainer.resume.how == "argument":
        return tuple(map(fill, shlex.split(trainer.resume.template))), ()
    name, _, text = trainer.resume.template.partition("=")
    return (), (Variable(name, fill(text), f"it goes on from step {resume_step}"),)


def _add_live(trainer: KnownTrainer, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Variable, ...]:
    """The variables of prime_train.live: where a script reports, and the folder from which callbacks are added."""
    folder, applied = live_folder(run_dir, attempt), run_dir.applied_settings(attempt)
    reports = [Variable(live.FOLDER_ENV, str(folder), "a script reports its steps here, and is asked to stop")]
    if trainer.command.settings:
        reports.append(Variable(live.PLANS_ENV, str(run_dir.settings), "a script finds changes of its settings here"))
        reports.append(Variable(live.STEP_ENV, str(resume_step), "it knows its step before its first report"))
        reports.append(Variable(live.APPLIED_ENV, str(applied), "it makes the changes of earlier attempts again"))
    if not trainer.command.live:
        return tuple(reports)
    given = next((entry.partition("=")[2] for entry in trainer.command.env if entry.startswith("PYTHONPATH=")), None)
    rest = os.environ.get("PYTHONPATH", "") if given is None else given
    path = os.pathsep.join(filter(None, (str(INJECTED), rest)))
    return *reports, Variable("PYTHONPATH", path, "callbacks are added to Hugging Face and Lightning trainers")
