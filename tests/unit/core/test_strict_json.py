"""Every plain value is read as it was written, and anything else is a ValueError."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.outside import parse_json

_UNFIT = {
    "deep": "[" * 200_000,
    "one too deep": "[" * 65 + "]" * 65,
    "deep objects": '{"a":' * 70 + "1" + "}" * 70,
    "infinity": '{"step": Infinity}',
    "not a number": "[NaN]",
    "minus infinity": "-Infinity",
    "beyond floats": "1e999",
    "5000 digits": "9" * 5000,
    "65 bits": str(2**64),
    "half a pair": '"\\ud800"',
    "cut": "{",
    "empty": "",
    "a word": "nope",
}


@pytest.mark.parametrize("text", _UNFIT.values(), ids=_UNFIT)
def test_content_that_later_code_would_not_survive_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    assert parse_json(json.dumps(["[{" * 500, '\\"['])) == ["[{" * 500, '\\"[']
    assert parse_json("[" * 64 + "]" * 64) is not None


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=8,
)


@settings(max_examples=40)
@given(_values)
def test_every_plain_value_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.text() | st.binary())
def test_any_text_is_a_value_or_a_value_error(content: str | bytes) -> None:
    try:
        value = parse_json(content)
    except ValueError:
        return
    assert not isinstance(value, float) or math.isfinite(value)
