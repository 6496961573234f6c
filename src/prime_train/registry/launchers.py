"""Reads registry/launchers.toml: how the words of a command start a training. Its comments describe the fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import tomli

from prime_train.core.installation import shipped

_NOTHING: Mapping[str, str] = {}


class TrainingLauncher(NamedTuple):
    """Words in front of a program."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    modules: frozenset[str] = frozenset()
    kind: str = ""
    switches: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    short: Mapping[str, str] = _NOTHING
    python: bool = False
    skip: int = 0
    behind_dashes: bool = False
    points_to: Mapping[str, str] = _NOTHING


class TrainingProgram(NamedTuple):
    """A program that trains or serves."""

    format: str
    starts: tuple[re.Pattern[str], ...]
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    config: str = ""
    points_to: Mapping[str, str] = _NOTHING


@cache
def launchers() -> tuple[TrainingLauncher, ...]:
    return tuple(_launcher(entry) for entry in _table()["launcher"])


@cache
def training_programs() -> tuple[TrainingProgram, ...]:
    return tuple(_program(entry) for entry in _table()["program"])


def may_start_training(text: str) -> bool:
    """Whether a script has a word of a training: a cheap test before it is parsed."""
    return any(word in text for word in _table()["words"])


@cache
def pointers_of(format_: str) -> Mapping[str, str]:
    """Key -> format of the files that the flags of a launcher or program name."""
    found = [entry.points_to for entry in launchers() if entry.name == format_]
    found.extend(entry.points_to for entry in training_programs() if entry.format == format_)
    return found[0] if found else _NOTHING


@cache
def _table() -> Mapping[str, Any]:
    with open(shipped("launchers.toml"), "rb") as file:
        return tomli.load(file)


def _launcher(entry: Mapping[str, Any]) -> TrainingLauncher:
    sets = {key: frozenset(entry[key]) for key in ("modules", "switches", "flags", "pairs") if key in entry}
    commands = tuple(tuple(command.split()) for command in entry["commands"])
    return TrainingLauncher(**{**entry, **sets, "commands": commands})


def _program(entry: Mapping[str, Any]) -> TrainingProgram:
    lists = {key: tuple(entry[key]) for key in ("flags", "needs") if key in entry}
    return TrainingProgram(**{**entry, **lists, "starts": tuple(re.compile(text) for text in entry["starts"])})
