"""Every signature matches its own example and no other; none of them can be made slow."""

from __future__ import annotations

import csv
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_train.diagnose.cause import judge
from prime_train.diagnose.log_scanner import scan
from prime_train.diagnose.signatures import Signature, catalogue
from prime_train.diagnose.speakers import ALL_SPEAKERS
from prime_train.rules.families import load_all

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from re import _constants as constants  # type: ignore[attr-defined]  # the standard library's own parser has no stubs
    from re import _parser as parser  # type: ignore[attr-defined]

ALL = catalogue().signatures
SHARED = Path(__file__).parents[4] / "shared" / "facts" / "error_signature_samples.csv"
CLASSES = {"config", "oom", "hardware", "network", "disk", "auth", "env", "bug", "data", "signal", "hang"}
each = pytest.mark.parametrize("signature", ALL, ids=lambda signature: signature.id)


def test_there_are_enough_and_each_id_is_used_once() -> None:
    assert len(ALL) >= 130
    assert len({signature.id for signature in ALL}) == len(ALL)


@each
def test_fields_are_legal_and_none_is_empty(signature: Signature) -> None:
    assert re.fullmatch(r"[A-Z]+\d*[A-Z]*\d{3}", signature.id)
    assert signature.cause_class in CLASSES
    assert signature.retry in {"no", "after_fix", "yes"}
    assert set(signature.speakers) <= set(ALL_SPEAKERS)
    assert signature.repeats >= 1
    for text in (signature.what, signature.why, signature.fix, signature.example, signature.source):
        assert text.strip()
        assert "\n" not in text
    assert not (signature.cascade and signature.notice)
    assert len(signature.what) + len(signature.why) + len(signature.fix) < 500


@each
def test_the_example_matches_its_own_id_alone(signature: Signature) -> None:
    assert [match.signature.id for match in catalogue().matches(signature.example)] == [signature.id]


@each
def test_the_counter_example_matches_none(signature: Signature) -> None:
    assert [match.signature.id for match in catalogue().matches(signature.not_example)] == []


@each
def test_what_is_reported_the_example_is_whole(signature: Signature) -> None:
    (match,) = catalogue().matches(signature.example)
    for template in (signature.what, signature.fix):
        filled = match.fill(template)
        assert filled.count("?") == template.count("?")
        assert "{" not in filled


@each
def test_a_log_of_the_example_alone_is_diagnosed_so(signature: Signature) -> None:
    lines = (signature.example + "\n") * signature.repeats
    found = judge([scan([lines.encode()], "a.log")])
    if signature.explains:
        assert found.cause is None
    elif signature.notice:
        assert found.cause is None
        assert [seen.id for seen in found.notices] == [signature.id]
    else:
        assert found.cause is not None
        assert found.cause.id == signature.id


@each
def test_a_log_of_the_counter_example_names_no_signature(signature: Signature) -> None:
    found = judge([scan([signature.not_example.encode()], "a.log")])
    assert found.cause is None or found.cause.id == "UNKNOWN"


@each
def test_literals_are_lower_case_and_state_something(signature: Signature) -> None:
    assert signature.literals
    for literal in signature.literals:
        assert literal == literal.lower()
        assert len(re.sub(r"\d", "", literal).strip()) >= 3


@each
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_for_any_matches_holds_a_literal(signature: Signature, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(re.compile(signature.pattern, re.IGNORECASE | re.ASCII)))
    assert any(literal in text.lower() for literal in signature.literals)


# --- no pattern may take more than linear time ---------------------------------------------------------


def _inner(operator: Any, value: Any) -> list[Any]:
    """The patterns that a part of a pattern holds."""
    if operator in (constants.MAX_REPEAT, constants.MIN_REPEAT):
        return [value[2]]
    if operator is constants.SUBPATTERN:
        return [value[3]]
    if operator in (constants.ASSERT, constants.ASSERT_NOT):
        return [value[1]]
    return list(value[1]) if operator is constants.BRANCH else []


def _is_unbounded(operator: Any, value: Any) -> bool:
    return operator in (constants.MAX_REPEAT, constants.MIN_REPEAT) and value[1] is constants.MAXREPEAT


def _has_unbounded(pattern: Any) -> bool:
    return any(_is_unbounded(*part) or any(map(_has_unbounded, _inner(*part))) for part in pattern)


def _nests(pattern: Any) -> bool:
    """Whether a repeat stands in a repeat: (a+)+ tries every way to part a text."""
    for operator, value in pattern:
        repeats_often = operator in (constants.MAX_REPEAT, constants.MIN_REPEAT) and value[1] > 8
        if repeats_often and _has_unbounded(value[2]):
            return True
        if any(map(_nests, _inner(operator, value))):
            return True
    return False


def _runs_over_anything(pattern: Any) -> int:
    """How often `.*` or `[^x]*` stands in it: each is tried from every place of a line again."""
    total = 0
    for operator, value in pattern:
        if _is_unbounded(operator, value):
            repeated = [part for part, _ in value[2]]
            total += repeated in ([constants.ANY], [constants.NOT_LITERAL])
        total += sum(map(_runs_over_anything, _inner(operator, value)))
    return total


@each
def test_no_pattern_is_catastrophic(signature: Signature) -> None:
    parsed = parser.parse(signature.pattern, re.IGNORECASE)
    assert not _nests(parsed)
    assert _runs_over_anything(parsed) <= 2 * int(signature.pattern.startswith("^"))


# NCCL reports that the GPU's memory is full: not a fault of the hardware.
_MOVED = {"NCCL WARN Cuda failure 2 'out of memory'": "NCCL012"}
_FAMILIES = {"GPU": "DRV", "NET": "CONN", "TOK": "TKN"}  # of the table -> of the signatures: rules have these names


@pytest.mark.skipif(not SHARED.is_file(), reason="the table of sample lines is not here")
def test_the_sample_lines_are_diagnosed_by_their_id() -> None:
    wrong = {}
    with open(SHARED, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            family, number = row["id"][:-3], row["id"][-3:]
            signature = catalogue().by_id[_MOVED.get(row["sample"], f"{_FAMILIES.get(family, family)}{number}")]
            found = judge([scan([(row["sample"] + "\n").encode() * signature.repeats], "a.log")])
            ids = {found.cause.id} if found.cause else {seen.id for seen in found.notices}
            if ids != {signature.id}:
                wrong[row["id"]] = (row["sample"], ids)
    assert wrong == {}


# --- codes ------------------------------------------------------------------------------------------------


def test_no_code_or_family_is_a_rule_and_a_signature() -> None:
    rules, signatures = set(load_all()), {signature.id for signature in ALL}
    assert not rules & signatures
    assert not {code[:-3] for code in rules} & {code[:-3] for code in signatures}
