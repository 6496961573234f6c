"""Curves drawn with characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.views.compare.braille import Drawn, plot
from prime_train.views.text import ANSI

RISE = Drawn([(0, 0.0), (10, 10.0)], 0)
FALL = Drawn([(0, 10.0), (10, 0.0)], 1)


def paint(text: str, style: str) -> str:
    return f"\x1b[3{len(style)}m{text}\x1b[0m"


def test_letters_show_two_lines_and_where_they_meet() -> None:
    drawn = plot([RISE, FALL], columns=13, rows=5, paint=None)
    assert drawn == [
        "10 |BB     AA",
        "   |  B   A",
        "   |   ***",
        "   |  A   B",
        " 0 |AA     BB",
        "   +---------",
        "    0      10",
    ]


def test_braille_has_a_colour_for_each_line() -> None:
    drawn = plot([RISE, FALL], columns=20, rows=4, paint=paint)
    assert "\x1b[34m" in "".join(drawn)
    assert "\x1b[36m" in "".join(drawn)
    assert all(0x2800 < ord(letter) < 0x2900 for letter in ANSI.sub("", drawn[1][3:]).replace(" ", "").replace("|", ""))


numbers = st.floats(-1e100, 1e100)
lines = st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), min_size=1, max_size=30)


@given(lines, st.integers(40, 120), st.integers(2, 20), st.booleans())
def test_any_lines_fit_into_their_frame(
    found: list[list[tuple[float, float]]], columns: int, rows: int, dots: bool
) -> None:
    drawn = plot(
        [Drawn(sorted(line), place) for place, line in enumerate(found)], columns, rows, paint if dots else None
    )
    assert len(drawn) == rows + 2
    assert max(len(ANSI.sub("", line)) for line in drawn) <= columns


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(-9, 9)), min_size=1, max_size=40))
def test_the_highest_and_the_lowest_value_are_seen(points: list[tuple[int, float]]) -> None:
    drawn = plot([Drawn(sorted(points), 0)], 60, 8, None)
    assert "A" in drawn[7]
    assert "A" in drawn[0] or max(y for _, y in points) == min(y for _, y in points)
