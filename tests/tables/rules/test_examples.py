"""Every rule against its own documentation: each Bad fires it and no other, each Good is clean, each patch cures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from prime_train.config import detect
from prime_train.core.findings import Severity
from prime_train.facts.facts import Facts
from prime_train.facts.gather import PROBES
from prime_train.rules.explain import FILE, base_of, explain
from prime_train.rules.families import load_all
from prime_train.rules.judge import Verdict
from prime_train.rules.rule import Rule
from prime_train.spec import RunSpec
from prime_train.spec.prime_rl_parts import PrimeRl
from prime_train.toml.document import patched
from tests.unit.rules.examples import generation_of, judge_text, judged, parse, path_of, written

# test_foreign_examples.py has those that are files of another program.
BAD = [(rule, text) for rule in load_all().values() for text in explain(rule).bad if base_of(text) != FILE]
GOOD = [(rule, text) for rule in load_all().values() for text in explain(rule).good if base_of(text) != FILE]

_OF_THE_TEXT = ("CFG001", "IGN001")  # they point at a place in the text, not at a key


def _id(value: object) -> str:
    return value.code if isinstance(value, Rule) else ""


@cache
def _judged(example: str) -> Verdict:
    """The verdict on an example: a value, so that the tests below need only one of each."""
    return judged(example)


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_id)
def test_bad_fires_its_rule_and_no_other(rule: Rule, example: str) -> None:
    verdict = _judged(example)
    assert {finding.code for finding in verdict.findings} == {rule.code}, verdict.findings
    assert not verdict.skipped


@pytest.mark.parametrize(("rule", "example"), GOOD, ids=_id)
def test_good_is_clean_under_every_rule(rule: Rule, example: str) -> None:
    verdict = _judged(example)
    assert verdict.findings == ()
    assert rule.code in verdict.passed


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_id)
def test_patch_cures_and_brings_nothing_else(rule: Rule, example: str) -> None:
    findings = [finding for finding in _judged(example).findings if finding.patch]
    if findings:
        text, facts = parse(example)
        values = dict(detect.read(text, path_of(text)).document.values)
        for finding in findings:
            values = patched(values, finding.patch)
        verdict = judge_text(written(values), facts, generation_of(example))
        left = {finding.code for finding in verdict.findings if finding.severity is Severity.ERROR}
        assert not left | ({rule.code} & {finding.code for finding in verdict.findings})


@pytest.mark.parametrize("example", [example for _, example in BAD])
def test_finding_has_four_parts_and_a_place(example: str) -> None:
    lines = parse(example)[0].split("\n")
    for finding in _judged(example).findings:
        assert finding.what
        assert finding.why
        assert finding.fix
        assert 1 <= finding.span.line <= len(lines)
        assert 1 <= finding.span.column <= len(lines[finding.span.line - 1]) + 1
        assert finding.code in _OF_THE_TEXT or finding.key
        assert not finding.field or _is_field(finding.field), finding.field


@pytest.mark.parametrize("rule", load_all().values(), ids=_id)
def test_documentation_is_complete(rule: Rule) -> None:
    page = explain(rule)
    assert page.summary.endswith(".")
    assert "\n" not in page.summary
    assert page.why
    assert page.bad
    assert page.good
    assert any(note.startswith("Source: ") for note in page.notes)
    assert set(rule.needs) | set(rule.uses) <= {item.name for item in fields(Facts)}


def test_every_fact_has_a_probe() -> None:
    assert set(PROBES) == {item.name for item in fields(Facts)}


def _is_field(name: str) -> bool:
    """Whether a RunSpec has the field, or the table of free keys that holds it."""
    hint: Any = PrimeRl if name.partition(".")[0] in get_type_hints(PrimeRl) else RunSpec
    for part in name.split("."):
        hint = next((item for item in get_args(hint) if item is not type(None)), hint) if _is_union(hint) else hint
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is tuple and part.isdigit():
            hint = arguments[0]
        elif origin is not None:
            return issubclass(origin, Mapping)
        else:
            hints = get_type_hints(hint)
            if part not in hints:
                return False
            hint = hints[part]
    return True


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)
