"""Refuses a command that cannot be started, or that would show a secret. Starts nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from prime_train.core import redaction
from prime_train.core.errors import UserError
from prime_train.core.named_secrets import find_in_words
from prime_train.programs.command.trainer import KnownTrainer

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_VARIABLE = re.compile(r"\W+")


def refuse_secrets(argv: Sequence[str], env: Sequence[str], path: str) -> None:
    """Raise UserError for a secret in the file, and for an entry of env that is no assignment."""
    for number, given in enumerate(env):
        name, separator, value = given.partition("=")
        if not separator or not _NAME.fullmatch(name):
            raise UserError(
                what=f"{redaction.redact(given)!r} is no assignment",
                where=f"{path}: command.env.{number}",
                why="an entry is NAME=value",
                fix='for example: env = ["NCCL_DEBUG=INFO"]',
            )
        if redaction.is_secret(name, value) or redaction.find(given) or any(find_in_words((given,))):
            raise _secret_error(f"command.env has the secret {name}", f"{path}: command.env.{number}", name)
    named = dict(find_in_words(argv))
    at = next((place for place, word in enumerate(argv) if place in named or redaction.find(word)), None)
    if at is not None:
        name = _VARIABLE.sub("_", named.get(at, "NAME").lstrip("-")).upper()
        where = f"{path}: command.argv.{at}"
        raise _secret_error(f"argument {at} of the command is a secret, or has one", where, name)


def _secret_error(what: str, where: str, name: str) -> UserError:
    return UserError(
        what=what,
        where=where,
        why="the command is written into the run directory, and every user of this machine can list it",
        fix=f"export {name}=... before prime-train; the trainer inherits it, and every file masks it",
    )


def refuse_pattern(pattern: str, path: str) -> None:
    if not pattern:
        return
    try:
        has_step = "step" in re.compile(pattern).groupindex
        problem = "" if has_step else "it has no group (?P<step>...)"
    except re.error as error:
        problem = str(error)
    if problem:
        raise UserError(
            what=f"command.progress.log cannot be used: {problem}",
            where=f"{path}: command.progress.log",
            why="the number of the step is read from the group `step` of a Python regular expression",
            fix=r"for example: log = '''step (?P<step>\d+).*loss (?P<loss>\S+)'''",
        )


def refuse_missing(trainer: KnownTrainer) -> None:
    """Raise UserError if the working directory or the program does not exist, or may not be executed."""
    if not trainer.cwd.is_dir():
        raise UserError(
            what="there is no such folder",
            where=f"command.cwd = {trainer.cwd}",
            why="the command is started there",
            fix="create it, or correct command.cwd",
        )
    program = trainer.command.argv[0]
    folder = f"{Path(trainer.command.python).expanduser().parent}{os.pathsep}" if trainer.command.python else ""
    path = folder + os.environ.get("PATH", os.defpath)
    if "/" in program:
        found = trainer.cwd / program
        is_there, is_executable = found.exists(), os.access(found, os.X_OK) and not found.is_dir()
    else:
        is_executable = shutil.which(program, path=path) is not None
        is_there = is_executable or shutil.which(program, mode=os.F_OK, path=path) is not None
    if is_executable:
        return
    shown = shlex.quote(program)
    beside = (trainer.cwd / program).is_file() and "/" not in program
    raise UserError(
        what=f"{shown} may not be executed" if is_there else f"there is no program {shown}",
        where=f"command.argv = {shlex.join(trainer.command.argv)[:200]}",
        why="the system starts a program that is executable, by its path or from a folder of PATH",
        fix=_suggest_start(program, is_there=is_there or beside),
    )


def _suggest_start(program: str, *, is_there: bool) -> str:
    if is_there and program.endswith(".py"):
        return f"python {shlex.quote(program)} ..."
    if is_there:
        path = program if "/" in program else f"./{program}"
        return (
            f"chmod +x {shlex.quote(path)}, and start it by its path; or bash {shlex.quote(program)} for a shell script"
        )
    return "activate its environment, give its path, or set command.python to the interpreter beside it"
