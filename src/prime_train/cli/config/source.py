"""Finds the config that a word names: a file, a run, an attempt of one, a saved version, a preset, a git revision."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer

from prime_train.cli.config import saved
from prime_train.cli.config.revision import read_revision
from prime_train.cli.terminal.options import complete_config, complete_run
from prime_train.config import detect
from prime_train.config.detect import STDIN, read_config, split_config
from prime_train.config.foreign.recipe.draft import read_run
from prime_train.config.foreign.values import SUFFIXES
from prime_train.config.parsed_config import SYNTAX, Reading
from prime_train.config.presets import find_preset, list_presets, read_preset
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.spec.answers import prime_rl_of
from prime_train.supervise.launch.run_directory import read_run_spec
from prime_train.views.run.config_history import read_config_history
from prime_train.views.run.runs import find, is_run

_WHAT = "A file, a run, RUN@N (its attempt N), a preset, a saved NAME or NAME@N, or REV:PATH of a git revision."

Kind = Literal["file", "run", "attempt", "saved", "preset", "revision"]


class ConfigSource(NamedTuple):
    """The texts of a config with the paths to show; several are merged, the later one overrules the earlier."""

    kind: Kind
    title: str
    parts: tuple[tuple[str, str], ...]
    run_dir: RunDir | None = None

    def read(self, prime_rl: str | None = None) -> Reading:
        """The values. Raises UserError with exit code 2 or 4, because 1 means that two configs differ."""
        generation = _recorded_generation(self.run_dir) or prime_rl
        try:
            if len(self.parts) > 1:
                return _require_values(detect.read_merged(self.parts, generation))
            return _require_values(read_run(detect.read(*self.parts[0], generation)))
        except UserError as error:
            if error.exit_code is not ExitCode.FINDINGS:
                raise
            raise UserError(error.what, error.where, error.why, error.fix) from None


def find_source(word: str) -> ConfigSource:
    """The config of a word. Raises UserError if there is none, or more than one that a word may mean."""
    given, _, name = word.partition(":")
    if name and given in _KINDS and not os.path.lexists(word):
        return _KINDS[given](name)
    if word == STDIN or os.path.lexists(word):
        return _read_run(word) if _is_run(Path(word)) else _read_file(word)
    parts = split_config(word)
    if len(parts) > 1:
        return ConfigSource("file", word, tuple(map(read_config, parts)))
    found = list_meanings(word)
    if "run" in found and "saved" in found:
        raise ambiguous(word, f"prime-train config show run:{word}, or saved:{word}")
    if found:
        return _KINDS[found[0]](word)
    if name:
        return ConfigSource("revision", word, ((read_revision(word), word),))
    if os.sep in word or word.endswith((".toml", *SUFFIXES)):
        return _read_file(word)  # which explains what is not there
    raise UserError(
        what="no file, run, saved config or preset has this name",
        where=word or '""',
        why="a config is named by one of them; REV:PATH is a file of a git revision, and RUN@N an attempt",
        fix="see `prime-train status`, `prime-train config list` and `prime-train presets list`",
    )


def config_argument(metavar: str) -> Any:
    """The argument that names a config."""
    return typer.Argument(metavar=metavar, help=_WHAT, autocompletion=_complete, show_default=False)


def _complete(incomplete: str) -> list[str]:
    """Files, presets, runs and saved names that start with `incomplete`."""
    names = (name for name in saved.list_names() if name.startswith(incomplete))
    return [*complete_config(incomplete), *complete_run(incomplete), *names]


def list_meanings(word: str) -> list[Kind]:
    """What a name, or NAME@N, may mean, the most likely first: a run is nearer than a preset of its name."""
    name, number = split_number(word)
    found: list[Kind] = []
    if any(_is_run(Path.cwd() / place) for place in (Path("runs") / name, Path(name)) if name):
        found.append("run")
    if saved.list_numbers(name):
        found.append("saved")
    if number is None and find_preset(name) is not None:
        found.append("preset")
    return found


def split_number(word: str) -> tuple[str, int | None]:
    """(name, number) of NAME@N; (word, None) for another word."""
    name, at, number = word.rpartition("@")
    is_number = at and number.isascii() and number.isdecimal() and len(number) < 10
    return (name, int(number)) if is_number else (word, None)


def ambiguous(word: str, fix: str) -> UserError:
    return UserError(f"{word} is a run and a saved config", word, "both have the name", fix)


def _is_run(path: Path) -> bool:
    try:
        return is_run(path)
    except (OSError, ValueError):  # a name that no file can have
        return False


def _read_run(word: str) -> ConfigSource:
    name, attempt = (word, None) if os.path.lexists(word) else split_number(word)
    run_dir = find(name, Path.cwd())
    history = read_config_history(run_dir)
    config = history.configs[-1] if attempt is None else history.find_of_attempt(attempt)
    shown = run_dir.relative(run_dir.path)
    title = f"run {shown}" if attempt is None else f"run {shown}, attempt {attempt}"
    return ConfigSource("run" if attempt is None else "attempt", title, (history.read(config),), run_dir)


def _read_saved(word: str) -> ConfigSource:
    one = saved.read(*split_number(word))
    return ConfigSource("saved", f"saved {one.title}", ((one.text, f"{one.title}:{one.file}"),))


def _read_file(word: str) -> ConfigSource:
    text, path = read_config(word)
    return ConfigSource("file", path, ((text, path),))


def _read_preset(word: str) -> ConfigSource:
    preset = find_preset(word)
    if preset is None:
        known = ", ".join(list_presets())
        raise UserError("no preset is called so", word, f"presets: {known}", "prime-train presets list")
    return ConfigSource("preset", f"preset {word}", ((read_preset(preset), preset.path.name),))


_KINDS: dict[str, Callable[[str], ConfigSource]] = {"run": _read_run, "saved": _read_saved, "preset": _read_preset}


def _recorded_generation(run_dir: RunDir | None) -> str | None:
    """The generation of prime-rl with which a run began; None for any other config."""
    run = None
    with suppress(UserError):  # a record that cannot be read names none
        run = None if run_dir is None else read_run_spec(run_dir)
    return None if run is None or run.prime_rl is None else prime_rl_of(run).launch.generation


def _require_values(reading: Reading) -> Reading:
    """The reading if all of its values are known. Raises UserError."""
    fault = next((one for one in reading.faults if one.code == SYNTAX), None)
    path = reading.document.path
    if fault is not None:
        line = reading.document.fault.span.line if reading.document.fault is not None else 1
        why = "its values are not known where a line cannot be read"
        raise UserError(fault.what, f"{path}:{line}", why, f"{fault.fix}; prime-train lint {path} shows every line")
    if reading.run is not None and reading.run.jax is not None:
        why = "it is a program, and its settings are computed when it runs"
        raise UserError("it is a Python script and no config", path, why, f"diff -u compares its text; see {path}")
    if reading.run is None and reading.foreign is None:
        what = reading.faults[0].what if reading.faults else "it has no values"
        raise UserError(what, path, "a run cannot be built from it", f"prime-train lint {path} shows all that is wrong")
    return reading
