"""Faults of meaning against the rules: found, and their healthy twins without an error."""

from __future__ import annotations

import pytest
import tomli

from prime_train.core.findings import Severity
from prime_train.rules.judge import Verdict, lint
from prime_train.toml.document import patched
from tests.tables.rules.planted_faults import BASES, PAIRS, Pair
from tests.unit.rules.examples import written

_MUST_FIND = 0.95  # the goal for files that no author of a rule has seen is 0.9


def _verdict(pair: Pair, keys: dict[str, object]) -> Verdict:
    base, path, generation = BASES[pair.base]
    return lint(written(patched(tomli.loads(base), keys)), path, generation)


def _is_found(pair: Pair) -> bool:
    findings = _verdict(pair, pair.fault).findings
    return any(finding.code in pair.codes and finding.severity > Severity.NOTE for finding in findings)


def test_the_set_is_large_enough() -> None:
    assert len(PAIRS) >= 60
    assert len({pair.what for pair in PAIRS}) == len(PAIRS)


def test_planted_faults_are_found() -> None:
    missed = [pair.what for pair in PAIRS if not _is_found(pair)]
    assert len(missed) <= (1 - _MUST_FIND) * len(PAIRS), missed


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.what)
def test_a_healthy_twin_has_neither_an_error_nor_the_finding(pair: Pair) -> None:
    findings = _verdict(pair, pair.twin).findings
    assert [finding for finding in findings if finding.severity is Severity.ERROR or finding.code in pair.codes] == []
