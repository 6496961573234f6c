"""Finds the training that a command starts: its launchers, its program and the flags of each. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prime_train.config.foreign.arguments import Arguments, read_arguments, read_launcher_flags
from prime_train.config.foreign.shell.made_texts import SHELLS
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.values import Word
from prime_train.config.foreign.values import SHELL_SUFFIXES
from prime_train.registry.launchers import TrainingLauncher, TrainingProgram, launchers, training_programs
from prime_train.toml.document import value_at

_MOST_LAYERS = 12  # launchers inside each other
_PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?|torchrun_python|pypy3?")
_ENVIRONMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PYTHON_TAKES = frozenset({"-X", "-W", "-Q"})
_MODULE, _SCRIPT, _COMMAND = "module", "script", "command"


class Layer(NamedTuple):
    """A launcher with its flags. `word` is the one that names it."""

    launcher: TrainingLauncher
    arguments: Arguments
    word: Word


class Start(NamedTuple):
    """A training that a command starts. `program` is None for one that is not known."""

    command: ShellCommand
    layers: tuple[Layer, ...]
    program: TrainingProgram | None
    name: Word
    arguments: Arguments
    is_python: bool

    @property
    def launcher(self) -> Layer | None:
        """The launcher that starts the processes; None if the program does it."""
        return next((layer for layer in reversed(self.layers) if layer.launcher.python), None)


def read_start(command: ShellCommand) -> Start | None:
    """The training that a command starts; None if it has neither a launcher nor a known program."""
    layers, words = _read_layers(command)
    kind = _COMMAND
    if layers and layers[-1].launcher.python:
        flags = layers[-1].arguments.values
        kind = _MODULE if flags.get("module") is True else _SCRIPT
        kind = _COMMAND if flags.get("no_python") is True else kind
    # a command that begins with a flag is the rest of one that a slip cut off
    is_program = bool(words) and not words[0].text.startswith("-")
    return _program(command, layers, words, kind) if is_program else None


def read_script_start(command: ShellCommand) -> Sequence[Word]:
    """The script that a command starts, with its arguments: `bash train.sh 8`, `srun ./train.sh`, `sbatch job.sh`.

    Empty for a command that starts none, or whose words may hide flags.
    """
    _, words = _read_layers(command)
    name = words[0].base if words else ""
    if name == "sbatch":
        return _behind_flags(words[1:], r"(?!)", lambda word: word.text.endswith(SHELL_SUFFIXES))
    if name in SHELLS:
        return _behind_flags(words[1:], r"-\w*c", lambda word: not word.text.startswith(("-", "+")))
    is_path = bool(words) and "/" in words[0].text  # a name alone is searched in PATH
    return words if is_path and words[0].text.endswith(SHELL_SUFFIXES) else ()


def _behind_flags(words: Sequence[Word], stop: str, is_script: Callable[[Word], bool]) -> Sequence[Word]:
    """The words from the first script on; none behind an open flag, or one that `stop` matches."""
    for number, word in enumerate(words):
        if is_script(word):
            return words[number:]
        if word.is_open or re.fullmatch(stop, word.text):
            return ()
    return ()


def _read_layers(command: ShellCommand) -> tuple[tuple[Layer, ...], Sequence[Word]]:
    """The launchers of a command, and the words behind them."""
    words: Sequence[Word] = command.words
    layers: list[Layer] = []
    while words and len(layers) < _MOST_LAYERS:
        words = _without_assignments(words)
        module, inner = _python(words)
        launcher, rest = _launcher(words, module, inner)
        if launcher is None:
            break
        arguments, rest = read_launcher_flags(rest, launcher)
        layers.append(Layer(launcher, arguments, words[0]))
        words = rest
        if launcher.python:
            break
    return tuple(layers), words


def _program(command: ShellCommand, layers: tuple[Layer, ...], words: Sequence[Word], kind: str) -> Start | None:
    name, rest = words[0], words[1:]
    module, inner = _python(words) if kind == _COMMAND else ("", words)
    is_python = kind != _COMMAND or bool(module) or inner is not words
    if kind == _COMMAND and is_python:
        if not inner:
            return None
        name, rest = inner[0], inner[1:]
    arguments = read_arguments(rest)
    found = _find_program(name, arguments, has_command=not is_python)
    is_launched = any(layer.launcher.kind for layer in layers)
    if found is None and not (is_launched and is_python):
        return None
    if found is not None and not is_python and arguments.positionals:
        arguments = arguments._replace(positionals=arguments.positionals[1:])  # the subcommand
    if found is not None and found.config and arguments.positionals:
        _set_config(arguments, found.config)
    return Start(command, layers, found, name, arguments, is_python)


def _set_config(arguments: Arguments, key: str) -> None:
    """Gives the first argument its name as a key."""
    flag = read_arguments([_as_flag(arguments.positionals[0], key)])
    for name, value in flag.values.items():
        if name not in arguments.values:
            arguments.values[name] = value
            arguments.places[(name,)] = flag.places[(name,)]


def _as_flag(word: Word, key: str) -> Word:
    first = word.pieces[0]._replace(text=f"--{key}=", is_open=False)
    return Word((first, *word.pieces), word.many)


def _find_program(name: Word, arguments: Arguments, *, has_command: bool) -> TrainingProgram | None:
    text = name.literal or ""
    starts = [text, f"{text.rpartition('/')[2]} {arguments.positionals[0].text}" if arguments.positionals else ""]
    starts = starts if has_command else starts[:1]
    for program in training_programs():
        if any(pattern.fullmatch(start) for pattern in program.starts for start in starts if start):
            return program
    for program in training_programs():
        has_flag = any(value_at(arguments.values, tuple(flag.split("."))) is not None for flag in program.flags)
        if has_flag and (not program.needs or any(need in arguments.values for need in program.needs)):
            return program
    return None


def _without_assignments(words: Sequence[Word]) -> Sequence[Word]:
    """`env A=b command` without what stands in front of the command."""
    at = 0
    while at < len(words) - 1 and _ENVIRONMENT.match(words[at].text):
        at += 1
    return words[at:]


def _python(words: Sequence[Word]) -> tuple[str, Sequence[Word]]:
    """(name of the module, words from the module or script on) of `python -m module` or `python script.py`.

    The words themselves if they start no Python.
    """
    if not words or not _is_python(words[0]):
        return "", words
    at = 1
    while at < len(words):
        text = words[at].text
        if text == "-m":
            return (words[at + 1].literal or "", words[at + 1 :]) if at + 1 < len(words) else ("", ())
        if text == "-c" or text == "-":
            return "", ()
        if not text.startswith("-"):
            break
        at += 2 if text in _PYTHON_TAKES else 1
    return "", words[at:]


def _is_python(word: Word) -> bool:
    if word.is_open:
        return re.search(r"PYTHON", word.text) is not None and "-" not in word.text
    return _PYTHON.fullmatch(word.text.rpartition("/")[2]) is not None


def _launcher(
    words: Sequence[Word], module: str, inner: Sequence[Word]
) -> tuple[TrainingLauncher | None, Sequence[Word]]:
    """The launcher that words begin with, and the words behind its name."""
    texts = [word.literal or "" for word in words[:3]]
    texts[:1] = [texts[0].rpartition("/")[2]] if texts else []
    for launcher in launchers():
        if module and module in launcher.modules:
            return launcher, inner[1:]
        for name in launcher.commands:
            if tuple(texts[: len(name)]) == name:
                return launcher, words[len(name) :]
    return None, words
