"""Reads what ships with the package about models: the tested ones, and which package knows which architecture.

Judges nothing. Sizes of models are elsewhere, in registry/model_shapes.json: a lint reads those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import tomli
from packaging.version import Version

from prime_train.shipped import shipped

Where = Literal["vllm", "transformers", "prime-rl", "chat template", "model", "verifiers"]


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that is known to go wrong with a model: what it lies in, what to do, and the date of who says so."""

    where: Where
    what: str
    fix: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class TestedModel:
    """A model that somebody has run, and who says so. What no source tells is empty.

    `prime_rl` are the generations of prime-rl whose own configs use it, `uses` how they do, `measured` benchmarks with
    it, `vllm` a version that it was run with.
    """

    name: str
    sources: tuple[str, ...]
    as_of: str
    architecture: str = ""
    prime_rl: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    tool_parser: str = ""
    reasoning_parser: str = ""
    vllm: str = ""
    issues: tuple[Issue, ...] = ()

    __test__ = False  # no test class, whatever its name looks like to pytest


class Span(NamedTuple):
    """The versions, of those that were compared, that know a name. `last` is "" where the newest one does."""

    first: str
    last: str


class Package(NamedTuple):
    """Which names a package knows since when. `versions` are those compared, oldest first."""

    name: str
    versions: tuple[str, ...]
    known: Mapping[str, Span]
    source: str

    def knows(self, name: str, version: str) -> bool | None:
        """Whether that version knows a name; None where the versions compared do not decide it."""
        span = self.known.get(name)
        asked = Version(version)
        if span is None:
            return False if asked <= Version(self.versions[-1]) else None
        if span.last and asked > Version(span.last):
            return None if asked < Version(_after(self.versions, span.last)) else False
        if asked >= Version(span.first):
            return True
        before = [each for each in self.versions if Version(each) < Version(span.first)]
        return False if before and asked <= Version(before[-1]) else None


def _after(versions: Iterable[str], version: str) -> str:
    return next(each for each in versions if Version(each) > Version(version))


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way to write a tool call. `marks` all stand in a rendered call; `parsers` are vLLM's for it, the best first."""

    id: str
    marks: tuple[str, ...]
    parsers: tuple[str, ...]
    source: str
    absent: tuple[str, ...] = ()


@cache
def _architectures() -> Mapping[str, Any]:
    with open(shipped("architectures.toml"), "rb") as file:
        return tomli.load(file)


def _package(table: str, names: str) -> Package:
    about = _architectures()[table]
    known = {}
    for name, span in about[names].items():
        first, _, last = span.partition("..")
        known[name] = Span(first, last)
    return Package(table, tuple(about["versions"]), known, about["source"])


@cache
def vllm_architectures() -> Package:
    return _package("vllm", "architectures")


@cache
def vllm_tool_parsers() -> Package:
    return _package("vllm", "tool_parsers")


@cache
def transformers_types() -> Package:
    return _package("transformers", "model_types")


def vllm_gone(architecture: str) -> str:
    """The last version of vLLM that knew an architecture, as vLLM itself says; "" where it says none."""
    return str(_architectures()["vllm"]["gone"].get(architecture, ""))


def prime_rl_types() -> frozenset[str]:
    """The model types that prime-rl has code of its own for."""
    return frozenset(_architectures()["prime_rl"]["model_types"])


def prime_rl_vision_types() -> frozenset[str]:
    """The vision-language model types that prime-rl trains."""
    return frozenset(_architectures()["prime_rl"]["vision_types"])


@cache
def tool_formats() -> tuple[ToolFormat, ...]:
    """In the order in which they are looked for: the ones with more marks first."""
    with open(shipped("tool_formats.toml"), "rb") as file:
        return tuple(
            ToolFormat(
                entry["id"],
                tuple(entry["marks"]),
                tuple(entry["parsers"]),
                entry["source"],
                tuple(entry.get("absent", ())),
            )
            for entry in tomli.load(file)["format"]
        )


@cache
def tested_models() -> Mapping[str, TestedModel]:
    """By name, in the order of the file."""
    with open(shipped("models.toml"), "rb") as file:
        entries = tomli.load(file)["model"]
    return {entry["name"]: _tested(entry) for entry in entries}


def tested_model(name: str) -> TestedModel | None:
    """The entry of a name, whose case does not count: the hub leads any spelling to the same model."""
    return _by_lowered_name().get(name.lower())


@cache
def _by_lowered_name() -> Mapping[str, TestedModel]:
    return {name.lower(): model for name, model in tested_models().items()}


def _tested(entry: Mapping[str, Any]) -> TestedModel:
    issues = tuple(Issue(**issue) for issue in entry.get("issues", ()))
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    return TestedModel(**{**entry, **lists, "issues": issues})
