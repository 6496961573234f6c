"""Every rule on files of other programs against its examples, and every table in registry/foreign against its form."""

from __future__ import annotations

import re
from functools import cache

import pytest

from prime_train.config.foreign.conditions import parse
from prime_train.config.foreign.edit import edited_yaml
from prime_train.core.findings import Severity
from prime_train.registry.foreign import Doom, program_tables
from prime_train.rules.explain import FILE, base_of, explain, files_of
from prime_train.rules.families import load_all
from prime_train.rules.judge import Verdict
from prime_train.rules.rule import Rule
from tests.unit.rules.examples import judge_files

BAD = [(rule, text) for rule in load_all().values() for text in explain(rule).bad if base_of(text) == FILE]
GOOD = [(rule, text) for rule in load_all().values() for text in explain(rule).good if base_of(text) == FILE]
DOOMS = [doom for table in program_tables().values() for doom in table.doomed]


def _id(value: object) -> str:
    return value.code if isinstance(value, Rule | Doom) else ""


@cache
def _judged(example: str) -> Verdict:
    return judge_files(files_of(example))


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_id)
def test_bad_fires_its_rule_and_no_other(rule: Rule, example: str) -> None:
    assert {finding.code for finding in _judged(example).findings} == {rule.code}, _judged(example).findings


@pytest.mark.parametrize(("rule", "example"), GOOD, ids=_id)
def test_good_is_clean_under_every_rule(rule: Rule, example: str) -> None:
    assert _judged(example).findings == ()
    assert rule.code in _judged(example).passed


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_id)
def test_finding_has_four_parts_and_a_place(rule: Rule, example: str) -> None:
    texts = files_of(example)
    for finding in _judged(example).findings:
        assert finding.what, rule
        assert finding.why
        assert finding.fix
        assert finding.key or finding.code == "CFG001"  # it is at a place in the text
        path = next(name for name in texts if finding.path.endswith(f"/{name}"))
        lines = texts[path].split("\n")
        assert 1 <= finding.span.line <= len(lines)
        assert 1 <= finding.span.column <= len(lines[finding.span.line - 1]) + 1
        assert not re.search(r"\{[a-z]", finding.what + finding.fix), finding


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_id)
def test_a_patch_cures_and_brings_no_other_error(rule: Rule, example: str) -> None:
    files = files_of(example)
    first = next(iter(files))
    for finding in _judged(example).findings:
        if finding.patch and finding.path.endswith(f"/{first}") and not first.endswith((".sh", ".toml")):
            cured = edited_yaml(files[first], first, finding.patch)
            left = judge_files({**files, first: cured}).findings
            assert not [one for one in left if one.code == rule.code or one.severity is Severity.ERROR]


@pytest.mark.parametrize("doom", DOOMS, ids=_id)
def test_a_condition_can_be_parsed_and_names_its_keys(doom: Doom) -> None:
    parse(doom.when)
    assert doom.at
    assert doom.source
    assert re.fullmatch(r"[A-Z]{3}\d{3}", doom.code)


def test_a_code_is_of_one_table() -> None:
    codes = [doom.code for doom in DOOMS]
    assert len(codes) == len(set(codes))
    owners: dict[str, set[str]] = {}
    for name, table in program_tables().items():
        for doom in table.doomed:
            owners.setdefault(doom.code[:3], set()).add(name)
    assert all(len(names) == 1 for names in owners.values()), owners
