"""Recognises the files of other programs by their keys and words. Opens no file, judges no value.

The conditions are in registry/foreign/recognise.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import tomli

from prime_train.config.foreign.conditions import holds
from prime_train.config.foreign.scope import Scope
from prime_train.config.foreign.values import MOST_BYTES
from prime_train.core.installation import shipped
from prime_train.toml.document import Document

_NOTHING: Mapping[str, str] = {}
_TOP_KEY = re.compile(r"""(?m)^(?:"([^"\n]+)"|'([^'\n]+)'|([A-Za-z_][\w.-]*))[ \t]*:(?=\s|$)""")


class FileFormat(NamedTuple):
    """A format that is judged. The comments in the file describe the fields."""

    name: str
    title: str
    words: Sequence[str]
    when: str
    exponents: bool = False
    references: bool = False
    points_to: Mapping[str, str] = _NOTHING


class Other(NamedTuple):
    """A kind of file that is named and not judged."""

    title: str
    words: Sequence[str]
    when: str
    fix: str = ""


@cache
def formats() -> Mapping[str, FileFormat]:
    """Name -> format, in the order in which they are asked."""
    return {entry["name"]: FileFormat(**entry) for entry in _table()["format"]}


@cache
def others() -> tuple[Other, ...]:
    return tuple(Other(**entry) for entry in _table()["other"])


@cache
def _table() -> Mapping[str, Any]:
    with open(shipped("foreign", "recognise.toml"), "rb") as file:
        return tomli.load(file)


def has_words(text: str) -> bool:
    """Whether a text may have one of the formats. One without any of their words, or a large one, is never parsed."""
    return len(text) <= MOST_BYTES and any(_has_word(text, kind) for kind in formats().values())


def _has_word(text: str, kind: FileFormat | Other) -> bool:
    return any(word in text for word in kind.words)


def recognise(values: Mapping[str, Any], text: str) -> FileFormat | Other | None:
    """The format of values, or the kind of file that they are; None if neither is known."""
    scope = Scope(values)
    return next((kind for kind in _candidates(text) if holds(kind.when, scope)), None)


def _candidates(text: str) -> Iterator[FileFormat | Other]:
    kinds: Iterator[FileFormat | Other] = chain(others(), formats().values())
    yield from (kind for kind in kinds if _has_word(text, kind))


def is_template(document: Document) -> bool:
    """Whether the marks of jinja or Go keep a text from being parsed: before they are filled, it is no config."""
    if document.fault is None:
        return False
    line = document.fault.span.line
    around = "\n".join(document.text.split("\n", line + 1)[max(0, line - 2) : line])
    return "{{" in around or "{%" in around


def recognise_lines(document: Document) -> FileFormat | Other | None:
    """The format of a document that cannot be parsed, by the keys that begin its lines."""
    if is_template(document):
        return None
    names = ("".join(found) for found in _TOP_KEY.findall(document.text[:MOST_BYTES]))
    return recognise(dict.fromkeys(names, ""), document.text)
