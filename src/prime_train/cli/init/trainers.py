"""Finds the trainers that --trainer stands for, and the prime-rl of this environment."""

from __future__ import annotations

import os
from datetime import date
from functools import cache
from pathlib import Path
from typing import NamedTuple

from prime_train.choose.prime_rl import SHARES_A_GPU
from prime_train.choose.wishes import BUNDLED, ChosenData, GpuPlace, Task
from prime_train.cli.init.flags import COMMAND, Flags
from prime_train.config.prime_rl.schema import generations, newest
from prime_train.core.errors import ExitCode, UserError
from prime_train.facts.installed_prime_rl import table
from prime_train.programs.prime_rl.launcher import find_launcher

_PRIME_RL = "prime-rl"
Trainers = tuple[tuple[str, ...], tuple[str, ...]]


def choose_trainers(flags: Flags, task: Task, place: GpuPlace | None) -> Trainers:
    """The trainers to try, in their order, and notes. Raises UserError for a word that names none that can do it.

    `place` is None for the cheapest GPUs, which may be one.
    """
    known = ("auto", BUNDLED, _PRIME_RL, *generations())
    if flags.trainer not in known:
        raise UserError(
            what=f"{flags.trainer!r} names no trainer",
            where=f"--trainer {flags.trainer}",
            why=f"the trainers are {', '.join((*known, COMMAND))}",
            fix=f"--trainer {BUNDLED}; a trainer of yours: --trainer {COMMAND} --command 'torchrun train.py'",
        )
    if task == "pretrain" and flags.trainer not in ("auto", BUNDLED):
        raise UserError(
            what=f"no file of prime-rl is drafted for {task}",
            where=f"--trainer {flags.trainer}",
            why="init drafts files for its `rl` and its `sft`, and none for its trainer, orchestrator or server alone",
            fix=f"--trainer {BUNDLED}; --task rl or sft; or prime-train presets list",
        )
    if flags.trainer == BUNDLED or (flags.trainer == "auto" and task != "rl"):
        found: Trainers = (BUNDLED,), ()
    elif flags.trainer in generations():
        found = (flags.trainer,), ()
    else:
        found = _choose_generation(flags.trainer, task, place)
    if place is not None:
        _refuse_place(found[0][-1], task, place)
    return found


def _choose_generation(trainer: str, task: Task, place: GpuPlace | None) -> Trainers:
    """The generation that is found here, unless another one is needed for these GPUs."""
    installed = find_prime_rl()
    gpus, machines = (1, 1) if place is None else (place.hardware.gpus, place.machines)
    theirs = installed.generation or newest()
    if task == "rl" and gpus == 1:
        theirs = SHARES_A_GPU
    elif theirs == SHARES_A_GPU and (machines > 1 or task == "sft"):
        theirs = newest()
    # The engine of the bundled trainer is on the machine that trains.
    return ((theirs,) if trainer == _PRIME_RL or machines > 1 else (BUNDLED, theirs)), (installed.note,)


def _refuse_place(trainer: str, task: Task, place: GpuPlace) -> None:
    """Raise UserError for several machines, or GPUs, on which this trainer cannot do the task."""
    gpus, machines = place.hardware.gpus, place.machines
    is_first = trainer == SHARES_A_GPU
    if machines > 1 and (is_first or (trainer == BUNDLED and task == "rl")):
        what, why = (
            f"{machines} machines",
            "its engine is on the machine that trains; prime-rl 2026-05 and later have several",
        )
    elif is_first and task == "sft" and gpus > 1:
        what, why = f"{gpus} GPUs", "its `sft` is one process; that of 2026-05 and later starts one for each GPU"
    else:
        return
    where = f"{'the bundled trainer' if trainer == BUNDLED else f'prime-rl {trainer}'} with --gpus of {what}"
    fix = f"--trainer {newest()}, or --gpus {1 if task == 'sft' else gpus // machines}x{place.hardware.id}"
    raise UserError(f"{what} are not used for {task}", where, why, fix, ExitCode.FINDINGS)


def refuse_data(data: ChosenData, trainer: str) -> None:
    """Raise UserError for data that prime-rl's `sft` cannot read."""
    if data.kind == "demonstrations":
        what, fix = "solved tasks of an environment", "--data with a folder of chats"
    elif data.kind == "files" and not Path(data.path).is_dir():
        what, fix = f"{data.path} is no folder", f"--data {Path(data.path).parent}/"
    elif data.field:
        what, fix = f"its chats are in {data.field}", "rename that column to messages"
    else:
        return
    why = f"`sft` of prime-rl {trainer} loads a folder or a dataset of the hub, and reads messages"
    raise UserError(what, f"--data {data.path}".rstrip(), why, f"{fix}; or --trainer {BUNDLED}", ExitCode.FINDINGS)


class FoundPrimeRl(NamedTuple):
    """The generation of the prime-rl of this environment, "" for none, and a line about it."""

    generation: str
    note: str


@cache
def find_prime_rl() -> FoundPrimeRl:
    """Looks for prime-rl once: to ask it for its keys takes seconds."""
    try:
        python = find_launcher("rl", None, os.environ, Path.cwd(), "init").with_name("python")
        found = str(table(str(python), "installed", date.today())["inherits"])
    except UserError:
        return FoundPrimeRl("", "prime-rl: not found in this environment")
    return FoundPrimeRl(found, f"prime-rl: {python} has one of generation {found}")
