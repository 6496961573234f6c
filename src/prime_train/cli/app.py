"""The command line of `prime-train`: lists every command, and turns errors into messages and exit codes.

The module of a command is imported when the command is chosen, so that --help and shell completion stay fast.
"""

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_group

from prime_train import __version__
from prime_train.cli.terminal.options import COMMAND_WORD, NoColor
from prime_train.cli.terminal.render import color_wanted, json_text, message
from prime_train.cli.terminal.standard_streams import take_output_error, write_note
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import OutsideError, as_user_error

_LONGEST_SHOWN = 80
_SIGPIPE_EXIT = 128 + 13  # the exit code in a shell of a program killed by SIGPIPE

# Name and summary of each command: the function of the same name in its module, or the `app` there.
_COMMANDS = {
    "lint": "Check config files without running anything.",
    "rule": "List the rules, or those on a key, or explain one.",
    "validate": "Check a config against this machine.",
    "estimate": "Will it fit, how long does it take, what does it cost.",
    "find": "The cheapest offers on which a run fits.",
    "verify-model": "Check what a model can be used for.",
    "run": "Train under supervision; the same command resumes.",
    "status": "The state of one run, or of all runs in this folder.",
    "runs": "All runs of a folder: changes, results, cost.",
    "compare": "Curves of several runs, and the keys that differ.",
    "logs": "Show what a run does, and the output of its processes.",
    "monitor": "Poll a run on spot machines, and resume it if it is dead.",
    "set": "Change settings of a run while it trains.",
    "stop": "Save a checkpoint, end a run and wait for its end.",
    "pause": "Save a checkpoint and free the GPUs, until resume.",
    "resume": "Go on with a paused run, or back to a checkpoint.",
    "gpu": "GPUs of a run: drain, test, return.",
    "control": "One page for all runs of this folder.",
    "top": "A live table of all runs and devices.",
    "report": "Rewrite report.md and the plots of a run.",
    "profile": "Where the time of a few steps goes, and what to change.",
    "diagnose": "The root cause in any log files.",
    "ckpt": "Checkpoints: list, now, verify, prune, compress, restore, to-hf, consolidate.",
    "backup": "Copies of checkpoints in a bucket: configure, push, pull, prune, verify, status.",
    "schema": "Config schemas: export and import.",
    "config": "Show, compare, save and restore configs, also those of runs.",
    "presets": "Configs that ship with the package: list, show, copy.",
    "models": "The registry of tested models and their known issues.",
    "trainers": "Trainers of others: list, show, check a log.",
    "data": "Sets of audio clips: what they are made of.",
    "init": "Write a config for a model and a machine, or a workflow.",
    "prices": "Prices of GPUs: show, import, refresh.",
}

# Commands with a package of their own, whose module is `command`.
_ROOMS = {"config", "data", "estimate", "init", "lint", "profile", "run", "runs"}
_BESIDE = {  # other commands in such a package
    "compare": "runs.compare",
    "set": "control.set",
    "pause": "control.pause",
    "resume": "control.resume",
    "gpu": "control.gpu",
    "control": "control.control",
    "top": "control.top",
}

# Words that other programs use for what a command here does.
_OTHER_WORDS = {
    "restart": ("run CONFIG", "the command that started a run resumes it"),
    "start": ("run CONFIG", "`run` starts a run, and resumes it"),
    "train": ("run CONFIG", "`run` trains"),
    "launch": ("run CONFIG", "`run` starts a run, here or with --spot or --slurm"),
    "serve": ("run serve", "`run` serves a model with a config of kind serve, as the preset of that name"),
    "list": ("status", "`status` lists the runs of this folder"),
    "ls": ("status", "`status` lists the runs of this folder"),
    "ps": ("status", "`status` lists the runs of this folder"),
    "kill": ("stop RUN", "`stop` saves a checkpoint and ends a run"),
    "tail": ("logs RUN --follow", "`logs` shows the output of a run"),
    "new": ("init", "`init` asks what is trained, and writes a config that fits"),
    "create": ("init", "`init` asks what is trained, and writes a config that fits"),
    "check": ("lint CONFIG", "`lint` checks a config, and `validate` this machine as well"),
    "doctor": ("validate CONFIG", "`validate` checks a config against this machine"),
    "explain": ("rule CODE", "`rule` explains a code, and `diagnose` explains a failure"),
    "checkpoints": ("ckpt list RUN", "`ckpt` has the commands for checkpoints"),
}


class _Commands(TyperGroup):
    """Imports the module of the chosen command. The commands registered below are only names with a summary."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] == "help":  # `help ckpt list` is `ckpt list --help`
            args = [*args[1:], "--help"]
            if args == ["--help"]:
                typer.echo(ctx.get_help())
                ctx.exit()
        if args and args[0] in _OTHER_WORDS:
            meant, why = _OTHER_WORDS[args[0]]
            fix = f"prime-train {meant}"
            raise UserError(f"there is no command {args[0]}", f"prime-train {args[0]}", why, fix)
        if args and args[0] == "run" and "--" in args:
            args = _mark_words(args, args.index("--"))
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _load(str(name)), rest


def find_module(attribute: str) -> str:
    """The module of a command, by the name of its function."""
    module = f"prime_train.cli.{_BESIDE.get(attribute, attribute)}"
    return f"{module}.command" if attribute in _ROOMS else module


def _mark_words(args: list[str], at: int) -> list[str]:
    """The arguments with each word behind -- as a value, because none of them is an option of `run`."""
    words = args[at + 1 :]
    if not words:
        raise UserError(
            what="no command follows --",
            where=" ".join(["prime-train", *args]),
            why="the words after -- are started and watched",
            fix="prime-train run -- torchrun --nproc-per-node 2 train.py",
        )
    for word in words:
        if not word.isascii() and word.encode(errors="replace").decode() != word:
            what, why = "a word of the command is not UTF-8", "the run keeps it in a config, which is UTF-8 text"
            raise UserError(what, f"the word {ascii(word)[:_LONGEST_SHOWN]}", why, "rename the file that it names")
    return [*args[:at], *(f"{COMMAND_WORD}={word}" for word in words)]


def _load(name: str) -> Any:
    attribute = name.replace("-", "_")
    module = import_module(find_module(attribute))
    holder = typer.Typer(rich_markup_mode=None)
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name, help=_COMMANDS[name], no_args_is_help=True)
    else:
        holder.command(name)(getattr(module, attribute))
    return get_group(holder).commands[name]


app = typer.Typer(
    name="prime-train",
    cls=_Commands,
    help="Checks, launches, watches, recovers and explains a language-model training run.",
    epilog="Exit codes: 0 ok, 1 findings, 2 usage, 3 our bug, 4 out of reach, 5 or 6 run failed, 75 resumable.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes longer to import than everything else together
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prime-train {__version__}")
        raise typer.Exit


@app.callback()
def _prime_train(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    _no_color: NoColor = False,
) -> None:
    if color_wanted(sys.stdout):
        ctx.color = True  # else typer takes the colour that FORCE_COLOR asks for out of a pipe


for _name, _summary in _COMMANDS.items():
    app.command(_name, short_help=_summary)(lambda: None)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code (docs/exit-codes.md)."""
    code = _run()
    error = take_output_error()
    if error is not None:
        code = code or _report_output(error)
    sys.exit(code)


def _report_output(error: OSError) -> int:
    """The exit code of a command whose result could not be printed."""
    if error.errno in (errno.EPIPE, errno.EIO):  # the reader of a pipe, or the terminal, is gone
        return _SIGPIPE_EXIT
    report = UserError(
        what=f"the result could not be printed: {error.strerror}",
        where="standard output",
        why="it goes to a file or device that accepts no more",
        fix="see `df -h` and `quota -s` for its disk, or send the output elsewhere",
        exit_code=ExitCode.OUT_OF_REACH,
    )
    write_note(message(report, sys.stderr))
    return report.exit_code


def _run() -> int:
    try:
        app(prog_name="prime-train")
    except SystemExit as end:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # typer exits with 1 if the pipe has no reader
            return _SIGPIPE_EXIT
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        unprinted = take_output_error(error)
        return _report(_refusal(error) or _bug(error)) if unprinted is None else _report_output(unprinted)
    except Exception as error:  # any other exception that is no UserError is a bug of prime-train
        return _report(_explain_lack(error) or _bug(error))
    return ExitCode.OK


def _report(error: UserError) -> int:
    """Print the error as text, and in place of a JSON result as a document. Returns the exit code of the error."""
    write_note(message(error, sys.stderr))
    if _is_json_wanted(sys.argv[1:]):
        document = {**error.document, "error": error.parts() | {"exit_code": int(error.exit_code)}}
        with suppress(OSError):  # the reader is gone; the text is on standard error
            sys.stdout.write(json_text(document) + "\n")
    return error.exit_code


def _is_json_wanted(arguments: list[str]) -> bool:
    named = "--json" in arguments or "--output-format=json" in arguments
    return named or ("--output-format", "json") in pairwise(arguments)


# What the system refuses by a number of errno, why, and what to do.
_LACKS = {
    errno.EAGAIN: (
        "no further process or thread can be started",
        "the limit of the user or of the container is reached",
        "see `ulimit -u` and /sys/fs/cgroup/pids.max; end other processes, or raise the limit",
    ),
    errno.EMFILE: (
        "no further file can be opened",
        "the limit of open files of this process is reached",
        "raise it: `ulimit -n 4096`",
    ),
    errno.ENOMEM: (
        "there is not enough memory",
        "the limit of this process, of the container or of the machine is reached",
        "see `ulimit -v`, `free -g` and /sys/fs/cgroup/memory.max",
    ),
}


def _explain_lack(error: Exception) -> UserError | None:
    """The message for a limit of the machine that is reached; None for another error."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and "can't start new thread" in str(
        error
    ):  # Python's words, Modules/_threadmodule.c
        number = errno.EAGAIN
    if number not in _LACKS:
        return None
    what, why, fix = _LACKS[number]
    return UserError(what, where="this machine", why=why, fix=fix, exit_code=ExitCode.OUT_OF_REACH)


def _refusal(error: OSError) -> UserError | None:
    """The message for what the system refuses: a file, by its owner, name or kind, or a limit; else None."""
    lack = _explain_lack(error)
    if lack is not None:
        return lack
    if error.errno == errno.ENAMETOOLONG and error.filename is not None:
        return UserError(
            what="no file can have this name: it is too long",
            where=os.fsdecode(error.filename)[:_LONGEST_SHOWN] + "...",
            why="a name of most file systems has at most 255 bytes, and a path 4,095",
            fix="give a shorter name",
        )
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_folder():
        return UserError(
            what="the working directory does not exist any more",
            where="the working directory",
            why="names of files and runs are read from there",
            fix="cd to a directory that exists",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    if error.filename is None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        if not isinstance(error, OutsideError):
            return None
        return as_user_error(error, str(error.filename), "put a regular file there", ExitCode.OUT_OF_REACH)
    return UserError(
        what=f"it cannot be used: {error.strerror}",
        where=os.fsdecode(error.filename),
        why="it belongs to another user, or its disk is read-only",
        fix="run the command as its owner, or copy the folder to one of yours and name the copy",
        exit_code=ExitCode.OUT_OF_REACH,
    )


def _has_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not imported here
    except FileNotFoundError:
        return False
    return True


def _bug(error: Exception) -> UserError:
    from prime_train.cli.terminal import crash

    path = crash.write(error)
    return UserError(
        what=f"{type(error).__name__}: {error}",
        where="prime-train itself",
        why="this is a bug in prime-train, not in your config or command",
        fix=f"report it with {path} (traceback, versions, redacted environment)",
        exit_code=ExitCode.BUG,
    )
