"""Prepares the command of another trainer for a rented machine, or refuses it with the reason. Starts nothing.

Nothing is known of the memory of a command, so the user names the GPUs. On the machine the command runs in a copy of
its folder, and the folder of its checkpoints is a link into the bucket: so that must be known before, and empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from prime_train.away.sky.candidates import RentedGpus
from prime_train.away.sky.commands import accelerators
from prime_train.away.sky.refusals import MACHINE_GPUS
from prime_train.away.sky.workdir import (
    IGNORE,
    MOST_FILES,
    CopiedFolder,
    find_left_out,
    find_link,
    find_local_path,
    is_inside,
    measure,
)
from prime_train.config.command_start import read_command
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import counted, format_bytes
from prime_train.programs.command.trainer import KnownTrainer, know_trainer
from prime_train.spec import RunSpec
from prime_train.spec.command import CommandSpec

_MOST_BYTES = 2 * 2**30  # uploaded at each submission, and copied to each machine
_SHOWN_SECRETS = 5


class PreparedCommand(NamedTuple):
    """A run with the command as the machine starts it, and what the user should know of it.

    `command.cwd` is the folder here that is copied; `command.checkpoints.dir` is relative to it.
    """

    run: RunSpec
    notes: tuple[str, ...]


def prepare(run: RunSpec, gpus: RentedGpus | None, config: str, *, submitted: bool) -> PreparedCommand:
    """The command for a machine with these GPUs. Raises UserError for what cannot work there.

    `run.command.cwd` is absolute. `submitted`: a job of this run exists, so its checkpoints are in the bucket.
    """
    command = run.command
    assert command is not None, "only a run of kind command comes here"
    count = _require_gpus(gpus).number
    if not run.prime_train.spot.setup:
        raise _error(
            config,
            "prime_train.spot.setup is empty",
            "a rented machine has Python alone, and what the command needs is not known",
            "--set 'prime_train.spot.setup=[\"pip install -r requirements.txt\"]'",
        )
    folder = Path(command.cwd)
    _refuse_folder(folder)
    trainer = know_trainer(command)
    _refuse_lost(trainer, config)
    checkpoints = _find_checkpoints(trainer, config, submitted=submitted)
    _refuse_words(command, folder, config)
    copied = measure(folder)
    _refuse_copied(folder, copied)
    # A launcher with a process for each GPU starts as many as the machine has.
    for_each = read_command(command.argv, folder).devices in ("gpu", "auto")
    processes = count if for_each else command.processes
    kept = replace(command, processes=processes, checkpoints=replace(command.checkpoints, dir=checkpoints))
    return PreparedCommand(replace(run, command=kept), tuple(_explain(kept, copied, count)))


def _explain(command: CommandSpec, copied: CopiedFolder, gpus: int) -> Iterator[str]:
    yield "memory: not known for a command, so the GPUs are those of --gpus, and the order is that of prices per hour"
    size = format_bytes(copied.size_bytes)
    yield f"copied to the job: {command.cwd}, {size} in {counted(copied.files, 'file')}; {IGNORE} leaves files out"
    for word in (*command.argv, *command.env):
        path = find_left_out(word, Path(command.cwd), copied)
        link = find_link(word, Path(command.cwd))
        if path and not Path(path).is_relative_to(command.checkpoints.dir):
            yield f"not copied: {path}, because {IGNORE} names it or git ignores it; setup can fetch it"
        elif link and not Path(link).is_relative_to(command.checkpoints.dir):
            yield f"not copied: {link}, because it is or is behind a link, which buckets do not hold; name its target"
    if command.processes != gpus:
        yield f"processes: {command.processes}, and the machine has {counted(gpus, 'GPU')}"


def _require_gpus(gpus: RentedGpus | None) -> RentedGpus:
    if gpus is None:
        raise UserError(
            what="--spot needs --gpus for the command of another trainer",
            where="prime-train run --spot",
            why="its memory is not known, so no GPU can be chosen for it",
            fix="--gpus 1xh100-80gb: the GPUs of one machine",
        )
    if gpus.number > MACHINE_GPUS:
        raise UserError(
            what=f"{gpus.number} GPUs are asked for, and a machine has at most {MACHINE_GPUS}",
            where="--gpus",
            why="all processes of a command are on one machine",
            fix=f"--gpus {MACHINE_GPUS}x{gpus.gpu}",
        )
    rented = sorted({accelerator.gpu for accelerator in accelerators()})
    if gpus.gpu not in rented:
        raise UserError(
            what=f"no cloud rents {gpus.gpu}",
            where="--gpus",
            why=f"SkyPilot's catalogue has {', '.join(rented)}",
            fix=f"--gpus {gpus.number}xh100-80gb",
        )
    return gpus


# --- checkpoints ------------------------------------------------------------------------------------


def _refuse_lost(trainer: KnownTrainer, config: str) -> None:
    """Raise UserError where the next machine could not continue the work of the one before."""
    why = "a spot machine is taken away without warning, and the next one would begin at step 0"
    if trainer.checkpoints is None:
        what = "the folder of its checkpoints is not known"
        raise _error(config, what, why, "--set 'command.checkpoints.dir=\"out\"'")
    if not trainer.layouts:
        what = "the layout of its checkpoints is not known, so none would count as complete"
        fix = "--set command.checkpoints.layout=NAME, which prime-train trainers list and show have; for a script that "
        fix += "calls live.checkpoint: --set command.trainer=live"
        raise _error(config, what, why, fix)
    if trainer.resume.how == "none" and not trainer.resumes_by_live:
        note = f" ({trainer.resume.note})" if trainer.resume.note else ""
        fix = (
            "--set command.resume.how=itself if it finds its newest checkpoint; else command.resume.how=argument or "
            "variable, with command.resume.template"
        )
        raise _error(config, f"how it resumes is not known{note}", why, fix)


def _find_checkpoints(trainer: KnownTrainer, config: str, *, submitted: bool) -> str:
    """The folder of the checkpoints, relative to that of the command. Raises UserError if it cannot be a link."""
    assert trainer.checkpoints is not None, "refused before"
    folder = Path(os.path.normpath(trainer.checkpoints))
    fix = "--set 'command.checkpoints.dir=\"out\"', and the same folder in the words or the config of the command"
    if not folder.is_relative_to(trainer.cwd) or not is_inside(folder.parent, trainer.cwd) or folder == trainer.cwd:
        what = f"its checkpoints are in {folder}, and not in a folder of their own below {trainer.cwd}"
        raise _error(config, what, "on the machine that folder is a link into the bucket", fix)
    variable = trainer.profile.checkpoints.variable if trainer.profile is not None else ""
    if variable in os.environ and not trainer.command.checkpoints.dir:
        what = f"the folder of its checkpoints is from {variable} of this environment"
        fix = f"--set 'command.env=[\"{variable}=out\"]', and command.checkpoints.dir for what it saves there"
        raise _error(config, what, "the machine has none of the variables of this one", fix)
    if not submitted and folder.is_dir() and any(folder.iterdir()):
        what = f"the folder of its checkpoints, {folder}, is not empty"
        why = "the job continues from the bucket alone, and would not go on from what is there"
        raise _error(config, what, why, f"move it away: mv {folder} {folder}.before; or another folder")
    return str(folder.relative_to(trainer.cwd))


# --- the copied folder ------------------------------------------------------------------------------


def _refuse_folder(folder: Path) -> None:
    if not folder.is_dir():
        why = "the job gets a copy of it"
        raise _error(f"command.cwd = {folder}", "there is no such folder", why, "create it, or correct command.cwd")
    if Path.home().resolve().is_relative_to(folder.resolve()):
        raise _error(
            f"command.cwd = {folder}",
            "it holds the home folder",
            "a job copies the folder of the command to its machine, with every login in it",
            "start the command in a folder of its own: cd PROJECT",
        )


def _refuse_copied(folder: Path, copied: CopiedFolder) -> None:
    leave_out = (
        f"name in {folder / IGNORE} what the job does not need, a pattern a line; .gitignore then counts no more"
    )
    if copied.files > MOST_FILES or copied.size_bytes > _MOST_BYTES:
        size = f"{format_bytes(copied.size_bytes)} in {copied.files:,} files"
        size = f"more than {size}" if copied.files > MOST_FILES else size
        raise _error(
            f"command.cwd = {folder}",
            f"it has {size}; at most {format_bytes(_MOST_BYTES)} in {MOST_FILES:,} files are copied",
            "it is uploaded at the submission, and copied to each machine",
            f"{leave_out}; data are better a name on the Hugging Face hub",
        )
    if copied.secrets:
        shown = ", ".join(copied.secrets[:_SHOWN_SECRETS])
        more = f", and {len(copied.secrets) - _SHOWN_SECRETS} more" if len(copied.secrets) > _SHOWN_SECRETS else ""
        raise _error(
            f"command.cwd = {folder}",
            f"it has files with the names of secrets: {shown}{more}",
            "the folder is copied into a bucket and to rented machines; .git/ of a clone in it may hold a login",
            leave_out,
        )


def _refuse_words(command: CommandSpec, folder: Path, config: str) -> None:
    named = [(f"command.argv.{number}", word) for number, word in enumerate(command.argv)]
    named += [(f"command.env.{number}", entry) for number, entry in enumerate(command.env)]
    named += [("command.progress.file", command.progress.file), ("command.stop.file", command.stop.file)]
    named += [("command.resume.template", command.resume.template)]
    for key, text in named:
        path = find_local_path(text, folder)
        if not path:
            continue
        place = Path(os.path.normpath(Path(path).expanduser()))
        fix = (
            "a file in that folder, a name on the hub, what prime_train.spot.setup fetches; a program by its name alone"
        )
        if place.is_relative_to(folder):
            fix = f"{os.path.relpath(place, folder)}, relative to the folder of the command"
        raise _error(
            f"{config}: {key}",
            f"{path!r} is a path of this machine",
            "the job has a copy of the command's folder, at another place, and nothing else of this machine",
            fix,
        )


def _error(where: str, what: str, why: str, fix: str) -> UserError:
    return UserError(what, where, why, fix, ExitCode.FINDINGS)
