"""Turns the words behind a command into nested values with the place of each: `--flag value`, `--flag=value`, `a.b=c`.

What a word hides stays open, and the values are partial if a word may stand for more flags, as "$@" does. Runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from prime_train.config.foreign.document import read_documents
from prime_train.config.foreign.shell.values import Word
from prime_train.config.foreign.values import AUTO, Open, PartialValues
from prime_train.core.findings import TextSpan
from prime_train.registry.launchers import TrainingLauncher
from prime_train.toml.place import KeyPath, Place

_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(=?)", re.ASCII)
_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w@/.-]*)=", re.ASCII)
_MORE_FLAGS = re.compile(r"[@*]|ARG|OPT|FLAG|EXTRA|PARAM|CMD", re.IGNORECASE)
_INTEGER = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_WRITTEN_CHARS = 60
_MOST_PARTS = 20  # of a dotted key
_MOST_FLOW_CHARS = 5_000


class Arguments(NamedTuple):
    """The flags and overrides of a command, and its other words."""

    values: PartialValues
    places: dict[KeyPath, Place]
    positionals: tuple[Word, ...]


def read_arguments(words: Sequence[Word]) -> Arguments:
    """The arguments of a program whose flags are not known: a flag takes the words up to the next one."""
    found = _Collector()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--":
            found.positionals.extend(words[at:])
            break
        flag = _flag(word)
        override = _OVERRIDE.match(word.text)
        if flag is not None and flag[1] is not None:
            found.add(_path(flag[0]), word, [flag[1]])
        elif flag is not None:
            values, at = _values(words, at, found)
            found.add(_path(flag[0]), word, values)
        elif override is not None and _is_known_to(word, override.end()):
            removes = override.group(1) == "~"
            found.add(tuple(override.group(2).split(".")), word, [] if removes else [word.behind(override.end())])
        elif word.many:
            found.values.is_partial = True
        else:
            found.positionals.append(word)
    return Arguments(found.values, found.places, tuple(found.positionals))


def read_launcher_flags(words: Sequence[Word], launcher: TrainingLauncher) -> tuple[Arguments, Sequence[Word]]:
    """The flags of a launcher, and the words of the command that it starts."""
    found = _Collector()
    known = launcher.switches | launcher.flags
    at = 0
    while at < len(words):
        word = words[at]
        flag = _flag(word)
        if word.text == "--":
            at += 1
            break
        if flag is None:
            if word.many and _MORE_FLAGS.search(word.text):
                found.values.is_partial = True
            elif not launcher.behind_dashes and not ("=" in word.text and launcher.name == "wrapper"):
                break
            at += 1
            continue
        at += 1
        name, value = _long_name(flag[0], word, launcher, known)
        value = flag[1] if value is None else value
        if value is None and name not in launcher.switches:
            count = 2 if name in launcher.pairs else 1
            found.add((name,), word, list(words[at : at + count]))
            at += count
        else:
            found.add((name,), word, [] if value is None else [value])
    at += launcher.skip
    return Arguments(found.values, found.places, ()), words[at:]


def _long_name(name: str, word: Word, launcher: TrainingLauncher, known: frozenset[str]) -> tuple[str, Word | None]:
    """(long name of a flag, value that is written in the same word, as in -N2)."""
    name = name.replace("-", "_")
    if word.text.startswith("--"):
        beginning = [each for each in known if each.startswith(name)]
        return (beginning[0] if len(beginning) == 1 and name not in known else name), None
    if name in launcher.short:
        return launcher.short[name], None
    long = launcher.short.get(name[0])
    if long is not None and long not in launcher.switches and not launcher.pairs:
        return long, word.behind(2)
    return name, None


class _Collector:
    def __init__(self) -> None:
        self.values = PartialValues()
        self.places: dict[KeyPath, Place] = {}
        self.positionals: list[Word] = []

    def add(self, path: tuple[str, ...], flag: Word, words: list[Word]) -> None:
        """Sets a key; the last of two equal flags counts."""
        if len(path) > _MOST_PARTS:
            return
        table: dict[str, Any] = self.values
        for part in path[:-1]:
            inner = table.get(part)
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[path[-1]] = _value(words, flag)
        last = words[-1] if words else flag
        start = words[0] if words and words[0].pieces else flag
        written = " ".join(word.text for word in words)[:_WRITTEN_CHARS]
        if any(word.is_default for word in words):
            written += " (default of the script)"  # the environment may replace it
        self.places[path] = Place(_span(flag, flag), _span(start, last), written)


def _flag(word: Word) -> tuple[str, Word | None] | None:
    """(name, value behind `=`) of a flag; None for any other word."""
    found = _FLAG.match(word.text)
    if found is None or not _is_known_to(word, found.end()):
        return None
    if found.group(2):
        return found.group(1), word.behind(found.end())
    # a flag that goes on in a variable is none that can be named
    return (found.group(1), None) if found.end() == len(word.text) and not word.is_open else None


def _is_known_to(word: Word, count: int) -> bool:
    """Whether the first `count` characters of a word are certain."""
    for piece in word.pieces:
        if count <= 0:
            return True
        if piece.is_open:
            return False
        count -= len(piece.text)
    return count <= 0


def _path(name: str) -> tuple[str, ...]:
    return tuple(part.replace("-", "_") for part in name.split("."))


def _values(words: Sequence[Word], at: int, found: _Collector) -> tuple[list[Word], int]:
    """The words behind a flag that are its values, and where the rest begins."""
    values: list[Word] = []
    while at < len(words):
        word = words[at]
        if word.text == "--" or _flag(word) is not None or (values and _OVERRIDE.match(word.text)):
            break
        if word.many and (values or _MORE_FLAGS.search(word.text)):
            found.values.is_partial = True  # it may hold flags
        else:
            values.append(word)
        at += 1
    return values, at


def _value(words: list[Word], flag: Word) -> Any:
    if not words:
        return None if flag.text.startswith("~") else True
    values = [Open(word.text) if word.is_open else typed(word.text) for word in words]
    return values[0] if len(values) == 1 else values


def typed(text: str) -> Any:
    """The value of a word: a number, true, null, a list or table in brackets, "auto" as Open, else the text.

    `no`, `off` and `None` stay texts, because many flags have them as names.
    """
    if text == AUTO:
        return Open(text)
    if text in ("", "null", "~"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text[0] in "[{" and text[-1] in "]}":
        return _flow(text)
    return text


def _flow(text: str) -> Any:
    """The value of JSON or of a list of Hydra; Open if it is neither."""
    if len(text) > _MOST_FLOW_CHARS:
        return Open(text[:_WRITTEN_CHARS])
    documents = read_documents(f"value: {text}", "")
    if len(documents) != 1 or documents[0].fault is not None:
        return Open(text)
    return documents[0].values["value"]


def _span(start: Word, end: Word) -> TextSpan:
    if not end.pieces:
        return TextSpan(start.line, start.column, start.line, start.column + 1)
    last = end.pieces[-1].behind(len(end.pieces[-1].text))
    return TextSpan(start.line, start.column, max(start.line, last.line), max(1, last.column))
