"""Finds the profile of the trainer that a command starts: by its words, its script's imports, its config. Runs nothing.

A script is parsed and never run; only its top-level imports count, because those are certain.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.config.command_start import CommandStart
from prime_train.config.foreign import read as foreign
from prime_train.config.foreign.values import YAML_SUFFIXES
from prime_train.core import outside
from prime_train.core.outside import CONFIG_BYTES
from prime_train.registry.trainers import Recognition, TrainerProfile, trainer_profiles
from prime_train.toml.document import Document

_CONFIG_ENDS = (*YAML_SUFFIXES, ".toml")
_MOST_CONFIGS = 8  # words of a command that are opened to see whether they are a config


class FoundTrainer(NamedTuple):
    """A profile, and what showed it: "imports transformers"."""

    profile: TrainerProfile
    because: str


class NamedConfig(NamedTuple):
    """A config file among the words of a command. `format` is "" for one that is not recognised."""

    word: str
    format: str
    values: Mapping[str, Any]


def recognise(start: CommandStart, cwd: Path) -> FoundTrainer | None:
    """The first profile that the command fits; None where none does."""
    imported = read_imports(cwd / start.script) if start.script and start.is_known(start.script) else {}
    configs = list(read_configs(start, cwd))
    for profile in trainer_profiles().values():
        because = _find_reason(profile.recognise, start, imported, configs)
        if because:
            return FoundTrainer(profile, because)
    return None


def _find_reason(
    known: Recognition, start: CommandStart, imported: Mapping[str, set[str]], configs: list[NamedConfig]
) -> str:
    """What shows that the command starts this trainer; "" if nothing does."""
    program = Path(start.words[0]).name if start.words else ""
    if program in known.programs:
        return f"the program {program}"
    for word in (start.module, *start.words):
        texts = {word, Path(word).name} - {""}
        if any(re.fullmatch(pattern, text) for pattern in known.words for text in texts):
            return f"the word {word}"
    for module in known.imports:
        names = imported.get(module)
        if names is not None and (not known.names or names & set(known.names)):
            return f"{start.script} imports {module}"
    named = next((config for config in configs if config.format in known.formats), None)
    return f"{named.word} is a config of {named.format}" if named is not None else ""


def read_imports(script: Path) -> dict[str, set[str]]:
    """Top-level package -> names from it that a script imports or uses. Empty for a script that is unreadable."""
    tree = _parse(script)
    found: dict[str, set[str]] = {}
    modules: dict[str, str] = {}  # the name in the script -> the package
    for node in tree.body:
        for package, name, shown in _list_imports(node):
            found.setdefault(package, set()).update({name} - {""})
            modules[shown] = package
    for used in ast.walk(tree):
        if isinstance(used, ast.Attribute) and isinstance(used.value, ast.Name) and used.value.id in modules:
            found[modules[used.value.id]].add(used.attr)
    return found


def read_settings(script: Path, names: Collection[str]) -> set[str | None]:
    """The texts that a script gives to keywords and variables of these names; None for one that it computes."""
    found: set[str | None] = set()
    for node in ast.walk(_parse(script)):
        match node:
            case ast.keyword(arg=str(name), value=value) if name in names:
                found.add(_literal(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
                found.add(_literal(value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in names:
                found.add(_literal(value))
    return found


def _literal(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _parse(script: Path) -> ast.Module:
    """The syntax tree of a script; an empty one for a file that is no readable script."""
    try:
        return ast.parse(outside.read_text(script, CONFIG_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.Module([], [])


def _list_imports(node: ast.stmt) -> Iterator[tuple[str, str, str]]:
    """(package, name from it, name in the script) of an import; also of one within `try` or `if`."""
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield alias.name.partition(".")[0], "", alias.asname or alias.name.partition(".")[0]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                yield module.partition(".")[0], alias.name, alias.asname or alias.name
        case ast.Try(body=body) | ast.If(body=body):
            for inner in body:
                yield from _list_imports(inner)


def read_configs(start: CommandStart, cwd: Path) -> Iterator[NamedConfig]:
    """The config files among the words of a command. What cannot be read is left out."""
    words = [word.rpartition("=")[2] for word in start.words[1:]]
    named = [word for word in words if word.endswith(_CONFIG_ENDS) and start.is_known(word)]
    for word in named[:_MOST_CONFIGS]:
        try:
            text = outside.read_text(cwd / word, CONFIG_BYTES)
        except (OSError, ValueError):
            continue
        found = foreign.read_toml(Document.parse(text, word)) if word.endswith(".toml") else foreign.read(text, word)
        values = found.document.values if found is not None else {}
        yield NamedConfig(word, found.foreign[0].format if found is not None and found.foreign else "", values)
