"""Reads the shipped data about models: the tested ones, and the architectures that each package supports.

The sizes of models are in registry/model_shapes.json, which a lint reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from packaging.version import Version

from prime_train.registry.gpus import read_table

Where = Literal["vllm", "transformers", "prime-rl", "chat template", "model", "verifiers"]


@dataclass(frozen=True, slots=True)
class Issue:
    """A known problem with a model: where it is, its fix, and the source with its date."""

    where: Where
    what: str
    fix: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class TestedModel:
    """A model with published runs, and the sources. A field without a source is empty.

    `prime_rl` are the prime-rl generations with a config for the model, `uses` its roles there, `measured` benchmarks,
    `vllm` a version that served it.
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

    __test__ = False  # because of its name, pytest would collect it


class VersionSpan(NamedTuple):
    """The first and the last compared version with a name. `last` is "" if the newest version has it."""

    first: str
    last: str


class SupportedPackage(NamedTuple):
    """The names that a package supports, with their versions. `versions` are the compared ones, oldest first."""

    name: str
    versions: tuple[str, ...]
    known: Mapping[str, VersionSpan]
    source: str

    def knows(self, name: str, version: str) -> bool | None:
        """Whether `version` supports a name; None if it is between or after the compared versions."""
        span = self.known.get(name)
        wanted = Version(version)
        if span is None:
            return False if wanted <= Version(self.versions[-1]) else None
        if span.last and wanted > Version(span.last):
            return None if wanted < Version(_after(self.versions, span.last)) else False
        if wanted >= Version(span.first):
            return True
        before = [each for each in self.versions if Version(each) < Version(span.first)]
        return False if before and wanted <= Version(before[-1]) else None


def _after(versions: Iterable[str], version: str) -> str:
    return next(each for each in versions if Version(each) > Version(version))


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls. A call contains all `marks`; `parsers` are vLLM's parsers for it, best first."""

    id: str
    marks: tuple[str, ...]
    parsers: tuple[str, ...]
    source: str
    absent: tuple[str, ...] = ()


def _package(table: str, names: str) -> SupportedPackage:
    about = read_table("architectures.toml")[table]
    known = {}
    for name, span in about[names].items():
        first, _, last = span.partition("..")
        known[name] = VersionSpan(first, last)
    return SupportedPackage(table, tuple(about["versions"]), known, about["source"])


@cache
def vllm_architectures() -> SupportedPackage:
    return _package("vllm", "architectures")


@cache
def vllm_tool_parsers() -> SupportedPackage:
    return _package("vllm", "tool_parsers")


@cache
def transformers_types() -> SupportedPackage:
    return _package("transformers", "model_types")


def vllm_gone(architecture: str) -> str:
    """The last version of vLLM with a removed architecture, according to vLLM; else ""."""
    return str(read_table("architectures.toml")["vllm"]["gone"].get(architecture, ""))


def prime_rl_types() -> frozenset[str]:
    """The model types with their own code in prime-rl."""
    return frozenset(read_table("architectures.toml")["prime_rl"]["model_types"])


def prime_rl_vision_types() -> frozenset[str]:
    """The vision-language model types that prime-rl trains."""
    return frozenset(read_table("architectures.toml")["prime_rl"]["vision_types"])


@cache
def tool_formats() -> tuple[ToolFormat, ...]:
    """In matching order: formats with more marks come first."""
    return tuple(ToolFormat(**_with_tuples(entry)) for entry in read_table("tool_formats.toml")["format"])


@cache
def tested_models() -> Mapping[str, TestedModel]:
    """By name, in the order of the file."""
    return {entry["name"]: _tested(entry) for entry in read_table("models.toml")["model"]}


def tested_model(name: str) -> TestedModel | None:
    """The entry of a name. Ignores case, as the hub does."""
    return next((model for known, model in tested_models().items() if known.lower() == name.lower()), None)


def _tested(entry: Mapping[str, Any]) -> TestedModel:
    issues = tuple(Issue(**issue) for issue in entry.get("issues", ()))
    return TestedModel(**_with_tuples(entry) | {"issues": issues})


def _with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
