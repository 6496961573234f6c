"""The error signatures of registry/signatures, and the lines that match them. Judges no log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli

from prime_train.diagnose.prefilter import ERRORS, holds_any
from prime_train.diagnose.speakers import ALL_SPEAKERS, DEFAULT_SPEAKERS, Speaker
from prime_train.registry.gpus import data_file

CauseClass = Literal["config", "data", "oom", "hardware", "network", "disk", "auth", "env", "bug", "signal", "hang"]
Retry = Literal["no", "after_fix", "yes"]
_GROUP_FAMILIES = 4  # the square root of their number makes the fewest searches
_LONGEST_GROUP = 120  # characters of a line that a message quotes


class Signature(NamedTuple):
    """One kind of failure, and the pattern that finds it in a log. docs/adding.md explains each field."""

    id: str
    family: str  # name of its file
    pattern: str
    literals: tuple[str, ...]  # lower case; a line without any of them cannot match
    cause_class: CauseClass
    retry: Retry
    what: str
    why: str
    fix: str
    example: str
    not_example: str
    source: str
    cascade: bool = False  # it follows another failure
    ends: bool = False  # it reports that a process ended
    stop: bool = False  # it reports that a person, a signal or a scheduler ended the work
    generic: bool = False  # another signature in the same traceback is more specific
    weak: bool = False  # a warning: the cause only where nothing else is found
    notice: bool = False  # never a cause; explains a slow run
    speakers: tuple[Speaker, ...] = DEFAULT_SPEAKERS  # whose lines count
    exceeds: bool | None = None  # it counts only where {size} is, or is not, larger than {total}
    explains: str = ""  # never a cause; it is the reason for a failure with that id in the lines after it
    fix_while_loading: str = ""  # the fix where the traceback shows that the model was being loaded
    repeats: int = 1  # so many lines make one finding

    @property
    def hears_all(self) -> bool:
        """Whether the lines of every speaker count."""
        return self.speakers == ALL_SPEAKERS

    @property
    def is_summary(self) -> bool:
        """Whether it only reports that another process or task failed."""
        return self.cascade and self.cause_class in ("bug", "signal")


class Match(NamedTuple):
    """A signature found in a line: the start of the match, and its named parts."""

    signature: Signature
    start: int
    parts: dict[str, str]

    def fill(self, template: str) -> str:
        """`template` with each {part} replaced by the text from the line."""
        return template.format_map(defaultdict(lambda: "?", self.parts))


class Catalogue:
    """All signatures, ready to match."""

    def __init__(self, signatures: tuple[Signature, ...]) -> None:
        self.signatures = signatures

    @cached_property
    def _families(self) -> list[tuple[Callable[[str], bool], list[tuple[str, Signature]]]]:
        """For each family, whether a line holds one of its words, and these words with their signatures.

        A run without an error line needs none of them, and they take 30 ms and a megabyte.
        """
        families: dict[str, list[tuple[str, Signature]]] = defaultdict(list)
        for signature in self.signatures:
            families[signature.family] += ((literal, signature) for literal in signature.literals)
        return [(holds_any(literal for literal, _ in pairs), pairs) for pairs in families.values()]

    @cached_property
    def _groups(self) -> list[tuple[Callable[[str], bool], list[Callable[[str], bool]]]]:
        """The families in groups: whether a line holds a word of any family of the group, and of each."""
        groups = [
            self._families[start : start + _GROUP_FAMILIES] for start in range(0, len(self._families), _GROUP_FAMILIES)
        ]
        return [
            (holds_any(literal for _, pairs in group for literal, _ in pairs), [holds_one for holds_one, _ in group])
            for group in groups
        ]

    @cached_property
    def may_hold_error(self) -> Callable[[str], bool]:
        """Whether a lower-case text must be scanned line by line: it holds a literal, or looks like an error.

        Shared by all logs, because the regex engine caches up to a megabyte of states.
        """
        return holds_any((literal for item in self.signatures for literal in item.literals), ERRORS)

    @cached_property
    def by_id(self) -> dict[str, Signature]:
        """The signatures by their codes."""
        return {signature.id: signature for signature in self.signatures}

    def matches(self, text: str) -> Iterator[Match]:
        """Every signature that matches `text`, each once."""
        for signature in self._candidates(text.lower()):
            found = _compile(signature.pattern).search(text)
            if found is not None and (signature.exceeds is None or signature.exceeds == _exceeds(found)):
                parts = {name: (value or "?")[:_LONGEST_GROUP] for name, value in found.groupdict().items()}
                yield Match(signature, found.start(), parts)

    def families(self, lowered: str) -> tuple[bool, ...]:
        """For each family of signatures, whether the line holds one of its words. Cheaper than any pattern."""
        found: list[bool] = []
        for holds_some, each in self._groups:
            found += [holds_one(lowered) for holds_one in each] if holds_some(lowered) else [False] * len(each)
        return tuple(found)

    def may_match(self, raw: str, lowered: str) -> bool:
        """Whether any signature can match the line without its prefixes. Cheaper than removing the prefixes."""
        return any(
            signature.pattern.startswith("^") or _compile(signature.pattern).search(raw) is not None
            for signature in self._candidates(lowered)
        )

    def _candidates(self, lowered: str) -> Iterable[Signature]:
        """The signatures with a literal in the text."""
        return dict.fromkeys(
            signature
            for holds_one, pairs in self._families
            if holds_one(lowered)
            for literal, signature in pairs
            if literal in lowered
        )


_BYTES = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30}


def _exceeds(found: re.Match[str]) -> bool:
    """Whether the size that was asked for is larger than the whole device. PyTorch writes "more than 1EB" as well."""
    size, total = found["size"], found["total"]
    if not size[:1].isdigit():
        return True
    return total is not None and _read_bytes(size) > _read_bytes(total)


def _read_bytes(text: str) -> float:
    """The bytes in "341.58 GiB"."""
    number, unit = re.fullmatch(r"([\d.]+) ?(\w)\w*", text, re.ASCII).groups()  # type: ignore[union-attr]
    return float(number) * _BYTES[unit.lower()]


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled at its first use, because most logs need only a few."""
    return re.compile(pattern, re.IGNORECASE)


@cache
def catalogue() -> Catalogue:
    """The signatures that ship with the package, in the order of their files."""
    folder = data_file("signatures")
    return Catalogue(tuple(item for path in sorted(folder.glob("*.toml")) for item in _read_file(path)))


def _read_file(path: Path) -> Iterator[Signature]:
    with open(path, "rb") as file:
        entries: list[dict[str, Any]] = tomli.load(file)["signature"]
    for entry in entries:
        entry["cause_class"] = entry.pop("class")
        entry["literals"] = tuple(entry["literals"])
        if "speakers" in entry:
            entry["speakers"] = (
                ALL_SPEAKERS if entry["speakers"] == ["any"] else (*DEFAULT_SPEAKERS, *entry["speakers"])
            )
        yield Signature(family=path.stem, **entry)
