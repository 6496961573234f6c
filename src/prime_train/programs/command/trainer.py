"""What is known of the trainer of one run: a profile, and what run.toml has in place of it. Starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from prime_train.checkpoints.folder_layout import FolderLayout
from prime_train.checkpoints.layout_table import read_layout
from prime_train.checkpoints.step_folders import choose_layout
from prime_train.config.command_start import CommandStart, read_command
from prime_train.config.foreign.values import Open
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.command.recognise import read_configs, read_settings
from prime_train.programs.command.reported import read_reported
from prime_train.registry.trainers import (
    ExitMeaning,
    ResumeWay,
    StopWay,
    TrainerFile,
    TrainerLine,
    TrainerProfile,
    trainer_profiles,
)
from prime_train.spec import RunSpec
from prime_train.spec.command import CommandSpec
from prime_train.toml.document import value_at

_OWN = "run.toml"
_WITH_CALLBACK = frozenset({"hf", "lightning"})  # profiles whose trainers src/prime_train/callbacks knows


@dataclass(frozen=True, slots=True)
class KnownTrainer:
    """Everything that is known of the trainer of a run. What is not known is None or empty.

    `checkpoints`: the folder with its checkpoints. `progress_file`: the file that run.toml names.
    """

    command: CommandSpec
    profile: TrainerProfile | None
    cwd: Path
    lines: tuple[TrainerLine, ...]
    progress_file: Path | None
    checkpoints: Path | None
    layouts: tuple[FolderLayout, ...]
    resume: ResumeWay
    stop: StopWay
    exits: ExitMeaning

    @property
    def title(self) -> str:
        return self.profile.title if self.profile is not None else "a trainer without a profile"

    @property
    def resumes_by_live(self) -> bool:
        """Whether a callback loads the checkpoint. An argument, which a script may refuse, is not needed then."""
        return self.command.live and not self.command.resume.how and _has_callback(self.profile)

    @property
    def layout(self) -> FolderLayout | None:
        """The layout of its checkpoints: of several, the one that the folder has."""
        if self.checkpoints is None or not self.layouts:
            return None
        return self.layouts[0] if len(self.layouts) == 1 else choose_layout([self.checkpoints], self.layouts)

    @property
    def files(self) -> tuple[TrainerFile, ...]:
        """The files of the profile with its progress, below the folder of the checkpoints."""
        return self.profile.files if self.profile is not None else ()

    @property
    def shows_steps(self) -> bool:
        """Whether anything can show its steps."""
        return bool(self.files or self.progress_file or any(line.kind == "step" for line in self.lines))


@cache
def know_trainer(command: CommandSpec) -> KnownTrainer:
    """What is known of a command. Its cwd is absolute. Raises UserError for a profile or layout that does not exist."""
    profile = _find_profile(command.trainer)
    cwd = Path(command.cwd)
    start = read_command(command.argv, cwd)
    folder = _find_folder(command, profile, start, cwd)
    own, layouts = command.progress.log, _list_layouts(command, profile, start, cwd)
    lines = (TrainerLine("step", re.compile(own), (), _OWN),) if own else profile.lines if profile else ()
    return KnownTrainer(
        command=command,
        profile=profile,
        cwd=cwd,
        lines=lines,
        progress_file=cwd / command.progress.file if command.progress.file else None,
        checkpoints=folder,
        layouts=layouts,
        resume=_find_resume(command, profile, layouts, start),
        stop=_find_stop(command, profile),
        exits=profile.exits if profile is not None else ExitMeaning(zero_is_finished=True),
    )


def trainer_of(run: RunSpec) -> KnownTrainer:
    assert run.command is not None, "only a run of kind command has this program"
    return know_trainer(run.command)


def know_run(run: RunSpec, run_dir: RunDir) -> KnownTrainer:
    """What is known of the trainer with what its script has reported, or it has printed, in this run."""
    trainer = trainer_of(run)
    if trainer.checkpoints is not None and trainer.layouts:
        return trainer
    reported = read_reported(run_dir)
    if reported is None:
        return trainer
    layouts = trainer.layouts if reported.layout is None else (reported.layout,)
    return replace(trainer, checkpoints=reported.folder, layouts=layouts)


def _has_callback(profile: TrainerProfile | None) -> bool:
    if profile is None:
        return False
    return profile.name in _WITH_CALLBACK or _has_callback(trainer_profiles().get(profile.like))


def _find_profile(name: str) -> TrainerProfile | None:
    profiles = trainer_profiles()
    if name and name not in profiles:
        raise UserError(
            what=f"there is no profile {name!r}",
            where="command.trainer",
            why="a profile describes how a trainer reports, saves, resumes and stops",
            fix=f"one of {', '.join(sorted(profiles))}; or take it out",
        )
    return profiles[name] if name else None


def _find_folder(command: CommandSpec, profile: TrainerProfile | None, start: CommandStart, cwd: Path) -> Path | None:
    """The folder of the checkpoints: as in run.toml, else by the words of the command or the profile."""
    if command.checkpoints.dir:
        return cwd / Path(command.checkpoints.dir).expanduser()
    found = name_folder(profile, start, cwd) if profile is not None else ""
    return cwd / Path(found).expanduser() if found else None


def name_folder(profile: TrainerProfile, start: CommandStart, cwd: Path) -> str:
    """The folder of the checkpoints as the command names it, or the default of its trainer; "" if it is not known."""
    place = profile.checkpoints
    given = [start.flag(*place.flags), *(_find_key(config.values, place.keys) for config in read_configs(start, cwd))]
    given += [_find_key(start.flags, place.keys), os.environ.get(place.variable, "") if place.variable else ""]
    found = next(filter(None, given), None)
    if found is None:
        if any(isinstance(value_at(start.flags, tuple(key.split("."))), Open) for key in place.keys):
            return ""
        has_script = start.script and start.is_known(start.script)
        settings = (read_settings(cwd / start.script, (key,)) for key in place.keys) if has_script else ()
        written = next(filter(None, settings), set())
        # A folder that the script computes is not known, and two that it names are as good as none.
        found = (written.pop() or "") if len(written) == 1 else "" if written else place.default
    if not start.is_known(found):
        return ""
    return str(Path(found, place.below)) if found and place.below else found


def _find_key(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    found = (value_at(values, tuple(key.split("."))) for key in keys)
    return next((value for value in found if isinstance(value, str) and value), "")


def _list_layouts(
    command: CommandSpec, profile: TrainerProfile | None, start: CommandStart, cwd: Path
) -> tuple[FolderLayout, ...]:
    """The layout that run.toml names, else the one that an option of the command chooses, else those of the profile."""
    named = command.checkpoints.layout
    tables = {str(table["name"]): table for one in trainer_profiles().values() for table in one.layouts}
    if named:
        if named not in tables:
            raise UserError(
                what=f"there is no layout {named!r}",
                where="command.checkpoints.layout",
                why="a layout names the files that a whole checkpoint has; without one, none counts as complete",
                fix=f"one of {', '.join(sorted(tables))}; or take it out",
            )
        return (read_layout(tables[named], command.processes),)
    if profile is None:
        return ()
    settings = [start.flags, *(config.values for config in read_configs(start, cwd))] if profile.layout_keys else []
    chosen = [name for key, name in profile.layout_keys.items() if any(_is_set(values.get(key)) for values in settings)]
    return tuple(read_layout(tables[name], command.processes) for name in chosen or profile.layout_names)


def _is_set(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _find_resume(
    command: CommandSpec, profile: TrainerProfile | None, layouts: tuple[FolderLayout, ...], start: CommandStart
) -> ResumeWay:
    way, asked = profile.resume if profile is not None else ResumeWay(), command.resume
    if asked.how:
        way = way._replace(how=asked.how, template=asked.template or way.template)
    elif asked.template:
        way = way._replace(template=asked.template, how="argument" if way.how in ("none", "itself") else way.how)
    if way.aside == "rename" and layouts and all(layout.tracker is not None for layout in layouts):
        way = way._replace(aside="tracker")  # it would look for a checkpoint that is not there any more
    if way.how == "argument" and not start.passes_on and asked.how != "argument":
        why = 'the script does not pass a further word on to its training command: "$@" at its end does'
        way = way._replace(how="none", note=why)
    return way._replace(aside=asked.aside) if asked.aside else way


def _find_stop(command: CommandSpec, profile: TrainerProfile | None) -> StopWay:
    """A trainer without a profile gets SIGTERM, as every program expects."""
    way, asked = profile.stop if profile is not None else StopWay(how="signal"), command.stop
    return way._replace(
        how=asked.how or way.how,
        signal=asked.signal or way.signal,
        to=asked.to or way.to,
        file=asked.file or way.file,
    )
