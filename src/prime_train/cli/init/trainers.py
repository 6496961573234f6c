"""Finds the trainers that --trainer stands for, and the prime-rl of this environment."""

from __future__ import annotations

import os
from datetime import date
from functools import cache
from pathlib import Path
from typing import NamedTuple

from prime_train.choose.prime_rl import SHARES_A_GPU
from prime_train.choose.wishes import BUNDLED, Task
from prime_train.cli.init.flags import COMMAND, Flags
from prime_train.config.prime_rl.schema import generations, newest
from prime_train.core.errors import UserError
from prime_train.facts.installed_prime_rl import table
from prime_train.programs.prime_rl.launcher import find_launcher


def choose_trainers(flags: Flags, task: Task, gpus: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The trainers to try, in their order, and notes. Raises UserError for a word that names none."""
    known = ("auto", BUNDLED, "prime-rl", *generations())
    if flags.trainer not in known:
        raise UserError(
            what=f"{flags.trainer!r} names no trainer",
            where=f"--trainer {flags.trainer}",
            why=f"the trainers are {', '.join((*known, COMMAND))}",
            fix=f"--trainer {BUNDLED}; a trainer of yours: --trainer {COMMAND} --command 'torchrun train.py'",
        )
    if task != "rl":
        if flags.trainer not in ("auto", BUNDLED):
            raise UserError(
                what=f"no file of prime-rl is drafted for {task}",
                where=f"--trainer {flags.trainer}",
                why="init writes files for its `rl` alone",
                fix="--trainer bundled, or prime-train presets list",
            )
        return (BUNDLED,), ()
    if flags.trainer == BUNDLED:
        return (BUNDLED,), ()
    if flags.trainer in generations():
        return (flags.trainer,), ()
    found = find_prime_rl()
    is_single = gpus.partition("x")[0] == "1" or not gpus[:1].isdigit()
    theirs = SHARES_A_GPU if is_single else found.generation or newest()
    return ((theirs,) if flags.trainer == "prime-rl" else (BUNDLED, theirs)), (found.note,)


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
