"""Reads the error signatures of registry/signatures, and tells which of them a line matches. Judges no log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli

from prime_train.registry import data_file

CauseClass = Literal["config", "oom", "hardware", "network", "disk", "auth", "env", "bug"]
Retry = Literal["no", "after_fix", "yes"]
_LONGEST_GROUP = 120  # characters of a line that a message quotes


class Signature(NamedTuple):
    """One kind of failure, and the words by which a log tells it. docs/adding.md says what each field means."""

    id: str
    family: str  # the file it stands in
    pattern: str
    literals: tuple[str, ...]  # lower case; a line that has none of them cannot match
    cause_class: CauseClass
    retry: Retry
    what: str
    why: str
    fix: str
    example: str
    not_example: str
    source: str
    cascade: bool = False  # it follows another failure
    ends: bool = False  # it says that a process is over
    generic: bool = False  # another signature in the same traceback says more
    weak: bool = False  # a warning: the cause only where nothing else is
    notice: bool = False  # never a cause; worth telling while a run is slow
    level: Literal["error", "any"] = "error"  # "any": lines at info and debug level count too
    repeats: int = 1  # so many lines make one finding


class Match(NamedTuple):
    """A signature found in a line: where it begins, and its named parts."""

    signature: Signature
    start: int
    parts: dict[str, str]

    def told(self, template: str) -> str:
        """`template` with each {part} replaced by what the line says."""
        return template.format_map(defaultdict(lambda: "?", self.parts))


class Catalogue:
    """All signatures, ready to match."""

    def __init__(self, signatures: tuple[Signature, ...]) -> None:
        self.signatures = signatures
        self._compiled: dict[str, re.Pattern[str]] = {}
        self._by_literal: dict[str, list[Signature]] = defaultdict(list)
        for signature in signatures:
            for literal in signature.literals:
                self._by_literal[literal].append(signature)

    @cached_property
    def by_id(self) -> dict[str, Signature]:
        return {signature.id: signature for signature in self.signatures}

    def compiled(self, signature: Signature) -> re.Pattern[str]:
        """The pattern, compiled at its first use: most runs meet few of them."""
        found = self._compiled.get(signature.id)
        if found is None:
            found = self._compiled[signature.id] = re.compile(signature.pattern, re.IGNORECASE)
        return found

    def matches(self, text: str) -> Iterator[Match]:
        """Every signature that matches `text`, each once."""
        lowered = text.lower()
        seen: set[str] = set()
        for literal, signatures in self._by_literal.items():
            if literal not in lowered:
                continue
            for signature in signatures:
                if signature.id in seen:
                    continue
                seen.add(signature.id)
                found = self.compiled(signature).search(text)
                if found is not None:
                    parts = {name: (value or "?")[:_LONGEST_GROUP] for name, value in found.groupdict().items()}
                    yield Match(signature, found.start(), parts)


@cache
def catalogue() -> Catalogue:
    """The signatures that ship with the package, in the order of their files."""
    folder = data_file("signatures")
    return Catalogue(tuple(item for path in sorted(folder.glob("*.toml")) for item in _of_file(path)))


def _of_file(path: Path) -> Iterator[Signature]:
    with open(path, "rb") as file:
        entries: list[dict[str, Any]] = tomli.load(file)["signature"]
    for entry in entries:
        entry["cause_class"] = entry.pop("class")
        entry["literals"] = tuple(entry["literals"])
        yield Signature(family=path.stem, **entry)
