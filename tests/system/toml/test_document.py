from __future__ import annotations

import math
import subprocess
import sys
from datetime import UTC, date, datetime, time
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.findings import TextSpan
from prime_train.toml.document import Comment, Document, KeyPath, dotted, patched, to_toml

TEXT = """\
# a run
# prime-train: ignore[BAT001]
title.short = "é" # one
[run]
name = "x"   # two
probs = [ 0.5,
  0.5 ]
[[data.sources]]
kind = "files"
[data.sources.extra]
depth = 1
[[data.sources]]
kind = "é"
inline = { a = 1, b.c = [{ d = 2 }] }
["odd key".'and dots.too']
"q k" = 3
"""


def key_span(text: str, *key: str | int) -> tuple[int, int]:
    place = Document.parse(text, "t").place(key)
    assert place is not None, key
    return place.key.line, place.key.column


@pytest.mark.parametrize(
    ("key", "at", "written"),
    [
        (("title", "short"), (3, 1), '"é"'),
        (("run",), (4, 1), ""),
        (("run", "name"), (5, 1), '"x"'),
        (("run", "probs"), (6, 1), "[ 0.5, 0.5 ]"),
        (("run", "probs", 1), (7, 3), "0.5"),
        (("data", "sources", 0), (8, 1), ""),
        (("data", "sources", 0, "kind"), (9, 1), '"files"'),
        (("data", "sources", 0, "extra", "depth"), (11, 1), "1"),
        (("data", "sources", 1, "kind"), (13, 1), '"é"'),
        (("data", "sources", 1, "inline", "a"), (14, 12), "1"),
        (("data", "sources", 1, "inline", "b", "c", 0, "d"), (14, 28), "2"),
        (("odd key", "and dots.too", "q k"), (16, 1), "3"),
    ],
)
def test_places(key: KeyPath, at: tuple[int, int], written: str) -> None:
    assert key_span(TEXT, *key) == at
    place = Document.parse(TEXT, "t").place(key)
    assert place is not None
    assert place.written == written


def test_spans_count_characters_and_end_after_the_last() -> None:
    place = Document.parse("ä = 'ö'\n".replace("ä", '"ä"'), "t").place(("ä",))
    assert place is not None
    assert place.key == TextSpan(1, 1, 1, 4)
    assert place.value == TextSpan(1, 7, 1, 10)


def test_crlf_and_a_missing_last_newline() -> None:
    assert key_span("[a]\r\nb = 1\r\nc = 2", "a", "c") == (3, 1)


def test_nearest_is_the_table_around() -> None:
    document = Document.parse(TEXT, "t")
    around = document.nearest(("run", "missing", "deep"))
    assert around is not None
    assert around.key.line == 4
    assert document.nearest(("gone",)) is None


def test_a_table_without_a_header_is_placed_by_the_first_below_it() -> None:
    document = Document.parse("[a]\nb = 1\n[a.c.d]\ne = 1\n[[a.f.g]]\n[[a.f.g]]\n", "t")
    for key, line in {("a", "c"): 3, ("a", "f"): 5, ("a", "f", "g"): 5, ("a", "f", "g", 1): 6, ("a", "x"): 1}.items():
        place = document.nearest(key)
        assert place is not None
        assert place.key.line == line


def test_comments() -> None:
    assert Document.parse(TEXT, "t").comments() == (
        Comment(1, "# a run", True),
        Comment(2, "# prime-train: ignore[BAT001]", True),
        Comment(3, "# one", False, 19),
        Comment(5, "# two", False, 14),
    )


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = 1\nb = ]\n", 2, 5),
        ("a = 1\n  a = 2\n", 2, 3),
        ("[a]\n[b]\n[a]\n", 3, 1),
        ("a = 1\r\nb =\r\n", 2, 4),
        ('a = "x', 1, 7),
        ('a = "\x00"', 1, 6),
        ("a = 1\nbig = " + "9" * 5000 + "\n", 2, 7),
        ("a = " + "[" * 5000, 1, 1),
        (".".join(["a"] * 5000) + " = 1", 1, 1),
    ],
)
def test_the_first_fault_is_placed(text: str, line: int, column: int) -> None:
    fault = Document.parse(text, "t").fault
    assert fault is not None
    assert (fault.span.line, fault.span.column) == (line, column)
    assert fault.what


def test_a_deep_value_has_places_too() -> None:
    document = Document.parse("a = " + "[" * 300 + "]" * 300, "t")
    assert document.fault is None
    assert document.place(("a", *[0] * 299)) is not None


def test_values_alone_do_not_import_a_parser() -> None:
    program = (
        "import sys; from prime_train.toml.document import Document; Document.parse('a = 1', 't'); "
        "assert not any(name.startswith('tree_sitter') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- text ----------------------------------------------------------------------------------------

_keys = st.text(min_size=1, max_size=4)
_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_keys.filter(str.isprintable), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(_values)
def test_to_toml_is_read_back(value: Any) -> None:
    assert tomli.loads(f"a = {to_toml(value)}") == {"a": value}


def test_to_toml_of_special_numbers_and_of_what_toml_lacks() -> None:
    assert math.isnan(tomli.loads(f"a = {to_toml(math.nan)}")["a"])
    with pytest.raises(TypeError, match="NoneType"):
        to_toml(None)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_keys.filter(str.isprintable), _values, min_size=1, max_size=3))
def test_every_written_key_has_a_place(values: dict[str, Any]) -> None:
    text = "".join(f"{dotted((key,))} = {to_toml(value)}\n" for key, value in values.items())
    document = Document.parse(text, "t")
    for number, key in enumerate(values, start=1):
        place = document.place((key,))
        assert place is not None
        assert place.key.line == number


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("a", "b"), "a.b"),
        (("data", "sources", 0, "path"), "data.sources.0.path"),
        (("a b", "c.d", ""), '"a b"."c.d".""'),
        (("é",), '"é"'),
    ],
)
def test_dotted(key: KeyPath, text: str) -> None:
    assert dotted(key) == text


def test_patched_sets_and_takes_away_and_leaves_the_original() -> None:
    values = {"a": {"b": 1, "c": 2}, "l": [{"x": 1}]}
    assert patched(values, {"a.b": 3, "a.c": None, "n.m": "t", "l.0.x": [1]}) == {
        "a": {"b": 3},
        "l": [{"x": [1]}],
        "n": {"m": "t"},
    }
    assert values == {"a": {"b": 1, "c": 2}, "l": [{"x": 1}]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2026, 1, 31), "2026-01-31"),
        (time(7, 30), "07:30:00"),
        (datetime(2026, 1, 31, 7, 30, tzinfo=UTC), "2026-01-31T07:30:00+00:00"),
    ],
)
def test_dates_and_times_are_written_as_toml_has_them(value: date | time, text: str) -> None:
    assert to_toml(value) == text
    assert tomli.loads(f"a = {text}")["a"] == value


def test_a_value_of_a_type_that_toml_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match="no type for a bytes"):
        to_toml(b"x")


def test_columns_on_one_long_line_of_wide_characters() -> None:
    document = Document.parse("a = [" + '"éé", ' * 3000 + "]", "t")
    place = document.place(("a", 2999))
    assert place is not None
    assert place.value == TextSpan(1, 6 + 2999 * 6, 1, 6 + 2999 * 6 + 4)
