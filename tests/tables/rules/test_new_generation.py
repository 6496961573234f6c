"""A new generation of prime-rl is one table: under a copy of the newest table every rule judges as it did before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.config.prime_rl import schema
from prime_train.config.prime_rl.schema import features_of_generation
from prime_train.core.findings import Finding
from prime_train.core.installation import cache_path
from prime_train.rules.explain import BASES, explain
from prime_train.rules.families import load_all
from tests.unit.rules.examples import generation_of, judge_text, judged, parse

# The newest generation that rules have examples for.
NEWEST = max(base.split()[1] for base in BASES if base.startswith("prime-rl "))
COPY = "2099-01"
EXAMPLES = [
    pytest.param(example, id=f"{rule.code}-{number}")
    for rule in load_all().values()
    for number, example in enumerate((*explain(rule).bad, *explain(rule).good))
    if generation_of(example) == NEWEST
]


@pytest.fixture(scope="module", autouse=True)
def _copy() -> Iterator[None]:
    """The newest table once more, under a later name, among the tables that the user keeps."""
    kept = Path(cache_path("prime_rl", f"{COPY}.json"))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(Path(schema.tables()[NEWEST]).read_text(encoding="utf-8"), encoding="utf-8")
    schema.tables.cache_clear()
    yield
    kept.unlink()
    schema.tables.cache_clear()


def _renamed(finding: Finding) -> Finding:
    """The finding as it is of the newest generation: its texts name the generation."""
    what, why, fix = (text.replace(COPY, NEWEST) for text in (finding.what, finding.why, finding.fix))
    patch = {key: NEWEST if value == COPY else value for key, value in finding.patch.items()}
    return finding._replace(what=what, why=why, fix=fix, patch=patch)


def test_the_copy_is_the_newest_generation() -> None:
    assert schema.newest() == COPY
    assert features_of_generation(COPY) == features_of_generation(NEWEST)
    reading = detect.read(BASES[f"prime-rl {NEWEST}"], "config.toml")
    assert reading.generation == COPY
    assert reading.because.startswith("the newest of those that its keys fit: ")


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_rule_judges_an_example_as_under_the_newest_table(example: str) -> None:
    text, facts = parse(example)
    before, under_copy = judged(example), judge_text(text.replace(f'"{NEWEST}"', f'"{COPY}"'), facts, COPY)
    assert under_copy.generation == COPY
    assert [_renamed(finding) for finding in under_copy.findings] == [*before.findings]
    assert (under_copy.passed, under_copy.skipped) == (before.passed, before.skipped)
