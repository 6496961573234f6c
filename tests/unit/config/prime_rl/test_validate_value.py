"""The values that a prime-rl file may have, with pydantic's lax mode as the judge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from prime_train.config.prime_rl.validate_value import value_fault
from prime_train.config.schema import Field, Flag, Map, Number, Shape, Text
from prime_train.core.findings import Severity

SHAPES: dict[type[Any], Shape] = {int: Number(True), float: Number(False), bool: Flag(), str: Text()}
NUMBERS_AS_TEXT = st.from_regex(r"\A ?[+-]?[1-9][0-9]{0,2}(_[0-9]{1,2})?(\.0{0,2}[0-9]?)?(e[0-9])? ?\Z")
VALUES = st.one_of(
    NUMBERS_AS_TEXT,
    st.text(max_size=5),
    st.sampled_from(["true", "T", "yes", "ON", "off", "100.0", "1_000", "7."]),
    st.integers(-1000, 1000),
    st.floats(-1e6, 1e6),
    st.booleans(),
)


def field(shape: Shape, *, optional: bool = False) -> Field:
    return Field("key", "key", shape, "", None, optional=optional)


def accepts(kind: type[Any], value: Any) -> bool:
    fault = value_fault(field(SHAPES[kind]), value, ("key",))
    return fault is None or fault.severity is Severity.WARNING


def reads(kind: type[Any], value: Any) -> bool:
    try:
        read = TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return not (isinstance(read, float) and not math.isfinite(read))  # no key has an infinite value


@pytest.mark.parametrize("kind", SHAPES)
@given(value=VALUES)
def test_a_value_is_legal_where_pydantic_reads_it(kind: type[Any], value: Any) -> None:
    if value != "None":  # prime-rl reads it as no value
        assert accepts(kind, value) == reads(kind, value)


def test_a_whole_number_with_a_decimal_point_is_read_as_a_number() -> None:
    fault = value_fault(field(Number(True)), "100.0", ("max_steps",))
    assert fault is not None
    assert (fault.severity, fault.patch) == (Severity.WARNING, {"max_steps": 100})


def test_none_is_no_text_where_a_key_needs_one() -> None:
    assert value_fault(field(Text(), optional=True), "None", ("name",)) is None
    fault = value_fault(field(Text()), "None", ("name",))
    assert fault is not None
    assert fault.severity is None


def test_a_text_is_not_offered_where_a_table_of_texts_belongs() -> None:
    fault = value_fault(field(Map(Text())), 1.5, ("headers",))
    assert fault is not None
    assert (fault.what, fault.patch) == ("headers must be a table, not the number 1.5", {})
