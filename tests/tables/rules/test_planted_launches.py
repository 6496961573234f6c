"""Planted faults in launch scripts and configs of other programs: found, and their healthy twins without them."""

from __future__ import annotations

import pytest

from prime_train.core.findings import Severity
from tests.tables.rules.planted_launches import BASES, PAIRS, Pair
from tests.unit.rules.examples import judge_files

_MUST_FIND = 0.9


def _text(pair: Pair, replacement: str) -> str:
    base = BASES[pair.base]
    assert base.count(pair.place) == 1, pair.what
    return base.replace(pair.place, replacement)


def _codes(pair: Pair, text: str) -> set[str]:
    return {finding.code for finding in judge_files({pair.base: text}).findings}


def test_the_set_is_large_enough() -> None:
    assert len(PAIRS) >= 30
    assert len({pair.what for pair in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("name", BASES)
def test_a_base_has_no_error(name: str) -> None:
    findings = judge_files({name: BASES[name]}).findings
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]


def test_planted_faults_are_found() -> None:
    missed = [pair.what for pair in PAIRS if pair.code not in _codes(pair, _text(pair, pair.fault))]
    assert len(missed) <= (1 - _MUST_FIND) * len(PAIRS), missed


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.what)
def test_a_twin_has_neither_an_error_nor_the_finding(pair: Pair) -> None:
    findings = judge_files({pair.base: _text(pair, pair.twin)}).findings
    assert not [finding for finding in findings if finding.severity is Severity.ERROR or finding.code == pair.code]
