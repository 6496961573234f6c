"""The shipped registry of models: its shape, its bounds, its dates, and what its tables answer."""

from __future__ import annotations

import datetime
import re

import pytest
import tomli
from packaging.version import Version

from prime_train.core.installation import shipped
from prime_train.registry import models
from prime_train.registry.models import SupportedPackage, VersionSpan

GENERATIONS = {"2026-01", "2026-05", "2026-08"}
USES = {"rl", "sft", "eval", "serve", "vllm-tests"}
TODAY = datetime.datetime.now(tz=datetime.UTC).date()


def date(text: str) -> datetime.date:
    found = datetime.date.fromisoformat(text)
    assert datetime.date(2023, 1, 1) <= found <= max(TODAY, datetime.date(2026, 11, 21))
    return found


def test_there_are_forty_models_or_more_and_none_twice() -> None:
    with open(shipped("models.toml"), "rb") as file:
        names = [entry["name"] for entry in tomli.load(file)["model"]]
    assert len(names) == len({name.lower() for name in names}) >= 40


def test_the_case_of_a_name_does_not_count() -> None:
    found = models.tested_model("allenai/OLMo-3-7B-Instruct")  # as prime-rl's benchmarks spell it
    assert found is not None
    assert found.name == "allenai/Olmo-3-7B-Instruct"
    assert found.measured
    assert models.tested_model("allenai/nothing") is None


@pytest.mark.parametrize("model", models.tested_models().values(), ids=lambda model: model.name)
def test_each_model_has_a_source_a_date_and_only_known_words(model: models.TestedModel) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.name)
    assert model.sources
    assert all(len(source) > 8 for source in model.sources)
    date(model.as_of)
    assert set(model.prime_rl) <= GENERATIONS
    assert set(model.uses) <= USES
    assert model.prime_rl or model.measured or model.issues or "vllm-tests" in model.uses, "nobody has run it"
    if model.tool_parser:
        assert model.tool_parser in models.vllm_tool_parsers().known
    if model.architecture:
        assert model.architecture in models.vllm_architectures().known
    if model.vllm:
        assert Version("0.6") < Version(model.vllm) < Version("2")
    for issue in model.issues:
        assert issue.what
        assert issue.fix
        assert issue.source
        date(issue.as_of)


def test_what_prime_rl_trains_is_known_as_such() -> None:
    known = [model for model in models.tested_models().values() if model.prime_rl]
    assert len(known) >= 20


@pytest.mark.parametrize(
    "package",
    [models.vllm_architectures(), models.vllm_tool_parsers(), models.transformers_types()],
    ids=("architectures", "parsers", "types"),
)
def test_a_table_names_only_versions_that_were_compared(package: SupportedPackage) -> None:
    assert list(package.versions) == sorted(package.versions, key=Version)
    assert package.source
    for span in package.known.values():
        assert span.first in package.versions
        assert span.last in ("", *package.versions[:-1])


TABLE = SupportedPackage(
    "made up", ("1", "2", "4", "6"), {"new": VersionSpan("4", ""), "old": VersionSpan("1", "2")}, "here"
)


@pytest.mark.parametrize(
    ("name", "version", "knows"),
    [
        *(("new", "2", False), ("new", "3", None), ("new", "4", True), ("new", "5", True), ("new", "9", True)),
        *(("old", "0.5", None), ("old", "1", True), ("old", "2", True), ("old", "3", None), ("old", "4", False)),
        *(("none", "2", False), ("none", "7", None)),
    ],
)
def test_between_two_versions_a_table_does_not_guess(name: str, version: str, knows: bool | None) -> None:
    assert TABLE.knows(name, version) is knows


def test_each_tool_format_is_read_by_a_parser_of_vllm() -> None:
    formats = models.tool_formats()
    assert len({each.id for each in formats}) == len(formats)
    for each in formats:
        assert each.marks
        assert each.source
        assert set(each.parsers) & set(models.vllm_tool_parsers().known), each.id
