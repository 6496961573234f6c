from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.bus.base import (
    check_name,
    check_pattern,
    check_subject,
    decode_message,
    encode_message,
    matches,
    to_word,
)

words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,8}", fullmatch=True)
subjects = st.lists(words, min_size=1, max_size=5).map(".".join)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("pt.*.r.*.ev", "pt.j.r.m1.ev", True),
        ("pt.*.r.*.ev", "pt.j.r.m1.hb", False),
        ("pt.*.r.*.ev", "pt.j.r.m1.ev.more", False),
        ("pt.>", "pt.j", True),
        ("pt.>", "pt", False),
        (">", "pt", True),
        ("pt.j", "pt.j", True),
    ],
)
def test_a_pattern_matches_word_by_word(pattern: str, subject: str, expected: bool) -> None:
    assert matches(check_pattern(pattern), check_subject(subject)) is expected


@given(subjects, st.data())
def test_a_pattern_made_of_a_subject_matches_it(subject: str, data: st.DataObject) -> None:
    pattern = [data.draw(st.sampled_from([word, "*"])) for word in subject.split(".")]
    assert matches(check_pattern(".".join(pattern)), subject)
    assert not matches(".".join(pattern), f"{subject}.more")
    assert matches(".".join([*pattern, ">"]), f"{subject}.more")


@given(st.text(), st.text())
def test_every_text_has_a_word_of_its_own(one: str, other: str) -> None:
    assert check_name(to_word(one)) == to_word(one)
    assert (to_word(one) == to_word(other)) == (one == other)


def test_a_text_that_looks_like_a_made_word_gets_another_one() -> None:
    assert to_word(to_word("a b")) != to_word("a b")


@given(st.dictionaries(texts, values, max_size=4))
def test_a_message_is_read_as_it_was_sent(body: dict[str, object]) -> None:
    found = decode_message("pt.j", encode_message(body, "id"))
    assert (found.id, found.body) == ("id", body)


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_refused(content: bytes) -> None:
    try:
        found = decode_message("pt.j", content)
    except ValueError:
        return
    assert isinstance(found.body, dict)
