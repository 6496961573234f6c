import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cli.terminal.render import color_wanted, labelled, message, paint, table
from prime_train.core.errors import UserError
from prime_train.views.text import sanitize


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert color_wanted(Terminal())
    assert not color_wanted(io.StringIO())
    assert paint("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert paint("x", "red", io.StringIO()) == "x"


def test_no_color_and_a_dumb_terminal_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not color_wanted(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    assert color_wanted(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not color_wanted(Terminal())


def test_an_error_has_four_parts_and_leaves_out_an_empty_one() -> None:
    told = message(UserError("it broke\ntwice", "run.toml:3", "because", ""), io.StringIO())
    assert told == "error: run.toml:3\n  what  it broke\n        twice\n  why   because"


def test_a_table_aligns_numbers_to_the_right_and_ends_no_line_with_a_blank() -> None:
    text = table([("a", "1", ""), ("long", "100", "x")], ("NAME", "N", ""), right=frozenset({1}))
    assert text == "NAME    N\na       1\nlong  100  x"


@given(st.text(), st.text())
def test_nothing_in_a_table_or_a_title_controls_the_terminal(one: str, two: str) -> None:
    for text in (one, f"\x1b]0;{one}\x07\x1b[2J\u202e\x9b{two}\x1b[8m\r\n"):
        shown = table([(text, two)], ("ONE", "TWO"))
        assert sanitize(shown) == shown
        assert shown.count("\n") == 1
        assert sanitize(labelled(text, [("label", two)], io.StringIO())) == labelled(
            text, [("label", two)], io.StringIO()
        )


def test_colour_codes_take_no_room_in_a_table() -> None:
    assert table([("\x1b[31mab\x1b[0m", "x")], ("H", "I")) == "H   I\n\x1b[31mab\x1b[0m  x"


def test_a_text_of_several_lines_stays_in_its_column() -> None:
    told = labelled("title", [("a", "one\ntwo\x1b[2J"), ("long", "three")], io.StringIO())
    assert told == "title\n  a     one\n        two\ufffd[2J\n  long  three"


@given(st.lists(st.tuples(st.text("ab "), st.text("ab ")), min_size=1))
def test_every_row_of_a_table_is_one_line(rows: list[tuple[str, str]]) -> None:
    lines = table(rows, ("ONE", "TWO")).split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line == line.rstrip() for line in lines)


@given(
    st.lists(st.tuples(*[st.text("abc 1", max_size=60)] * 4), max_size=5),
    st.integers(40, 120),
)
def test_a_table_fits_the_columns_of_a_terminal(rows: list[tuple[str, ...]], columns: int) -> None:
    shown = table(rows, ("a", "b", "c", "d"), {3}, columns, least_needed=(3, 1))
    assert max(map(len, shown.splitlines())) <= columns


def test_columns_are_left_out_before_texts_are_cut_and_numbers_are_never_cut() -> None:
    rows = [("x" * 30, "12345", "y" * 30)]
    assert (
        table(rows, ("name", "usd", "source"), {1}, 40, least_needed=(2,)) == f"{'name':<30}    usd\n{'x' * 30}  12345"
    )
    assert table(rows, ("name", "usd", "source"), {1}, 30).splitlines()[1] == f"{'x' * 9}…  12345  {'y' * 10}…"
    assert table(rows, ("name", "usd", "source"), {1}).splitlines()[1] == f"{'x' * 30}  12345  {'y' * 30}"
