"""Finds the launcher of an installed prime-rl, or says where it was looked for. Imports and starts nothing of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from prime_train.errors import ExitCode, UserError
from prime_train.programs.prime_rl.launcher import Installed

_HEAD_BYTES = 4096


def find(root: str, python: str | None, environment: Mapping[str, str], cwd: Path, shown: str) -> Installed:
    """`rl` or `sft` beside the interpreter that the config names; else on PATH, else in a .venv of the project at hand.

    A program of that name that is not prime-rl's counts for nothing: Debian has an `rl` that shuffles lines.
    Raises UserError where there is none. `shown` is the config, for the message.
    """
    looked: list[str] = []
    for candidate in _candidates(root, python, environment, cwd):
        if _is_prime_rl(candidate):
            return Installed((str(candidate),), candidate.parent)
        looked.append(f"{candidate}: {'not prime-rl' if candidate.exists() else 'not there'}")
    where = looked[-1].partition(":")[0] if python else "PATH and .venv/bin of this folder and those above it"
    raise UserError(
        what=f"no {root} of prime-rl was found: {'; '.join(looked[-3:]) or 'PATH has no program of that name'}",
        where=where,
        why=f"{shown} is a config of prime-rl, whose own launcher trains it; prime-train supervises that",
        fix=_fix(root, python),
        exit_code=ExitCode.OUT_OF_REACH,
    )


def _fix(root: str, python: str | None) -> str:
    if python is None:
        return (
            '[prime_train] python = "PATH/TO/prime-rl/.venv/bin/python" in the config, or start this inside its .venv'
        )
    again = shlex.join([python, "-c", "import prime_rl; print(prime_rl.__file__)"])
    return f"name the interpreter of the environment that has {root}; `{again}` must answer with a path"


def _candidates(root: str, python: str | None, environment: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    if python is not None:
        named = Path(python).expanduser()
        yield (named if named.is_absolute() else cwd / named).parent / root  # not resolved: a venv is a link's folder
        return
    for listed in environment.get("PATH", os.defpath).split(os.pathsep):
        found = Path(listed or ".", root).absolute()
        if found.is_file() and os.access(found, os.X_OK):
            yield found
    for folder in (environment.get("VIRTUAL_ENV"), *(str(above / ".venv") for above in (cwd, *cwd.parents))):
        if folder and (found := Path(folder, "bin", root)).is_file():
            yield found


def _is_prime_rl(program: Path) -> bool:
    """Whether a script was written by an installer for an entry point of prime_rl."""
    try:
        with open(program, "rb") as file:
            return b"prime_rl" in file.read(_HEAD_BYTES)
    except OSError:
        return False
