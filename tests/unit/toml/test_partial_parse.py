from __future__ import annotations

from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.toml.document import Document

GOOD = '# c\n[a]\nx = 1\ny = [\n 1,\n 2,\n]\n[b]\ns = """\n[no]\nx = 1\n"""\nd.e = { f = 1 }\n[[c]]\nz = 1\n'


@pytest.mark.parametrize(
    ("text", "at", "values"),
    [
        ("x=1\na = [1, 2\nb = 3\nc=4\n", (2, 5), {"x": 1, "b": 3, "c": 4}),
        ("x=1\na = [1, 2,\nb = 3\n", (2, 5), {"x": 1, "b": 3}),
        ("a = {b=1\nc=2\n", (1, 5), {"c": 2}),
        ('x=1\na = """x\nb=2\nc=3\n', (2, 5), {"x": 1, "b": 2, "c": 3}),
        ("a = '''\nb = 1\n", (1, 5), {"b": 1}),
        ("a = [\n1,\n2\n\n[b.c]\nc=1\n", (1, 5), {"b": {"c": {"c": 1}}}),
        ("a = [\n 1,\n tru,\n 3\n]\nb=1", (3, 2), {"b": 1}),
        ("a = 1\n[a]\nb=2\n[c]\nd=1", (2, 1), {"a": 1, "c": {"d": 1}}),
        ("x=1\n[a\nb=1\n[c]\nd=1", (2, 3), {"x": 1, "c": {"d": 1}}),
        ("a = tru\nb = tru\nc = 1", (1, 5), {"c": 1}),
        ("a=1\na=2\nb=3\n", (2, 1), {"a": 1, "b": 3}),
        ("[a]\nx = 1\r\ny = ]\r\nz = 2\r\n", (3, 5), {"a": {"x": 1, "z": 2}}),
        ("=", (1, 1), {}),
    ],
)
def test_the_first_fault_is_placed_and_the_rest_is_read(text: str, at: tuple[int, int], values: dict[str, Any]) -> None:
    document = Document.parse(text, "t")
    assert document.fault is not None
    assert (document.fault.span.line, document.fault.span.column) == at
    assert document.values == values


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a=1\nb=2\na = 3\n", 3, "a is defined twice: first in line 1"),
        ("[x]\na=1\n[y]\na=1\nb.c = 1\n'b' . c = 2\n", 6, "b.c is defined twice: first in line 5"),
        ("[x]\na=1\n[y]\nb=1\n[ x ] # again\nb=2\n", 5, "[x] is defined twice: first in line 1"),
        ("a = 1\nb = 2\na = [\n 1,\n 2,\n]\nc = 3\n", 3, "a is defined twice: first in line 1"),
        ("a.b = 1\n[a]\nc = 1\n", 2, "[a] is defined twice, or inside a key that has a value already"),
        ("[[a]]\n[a]\n", 2, "[a] is defined twice, or inside a key that has a value already"),
    ],
)
def test_what_is_there_twice_is_named_with_the_place_of_the_first(text: str, line: int, what: str) -> None:
    fault = Document.parse(text, "t").fault
    assert fault is not None
    assert (fault.span.line, fault.what, fault.fix) == (line, what, "keep one of the two")


def test_keys_beside_a_fault_have_places() -> None:
    document = Document.parse("[a]\nb = ]\nc = 'é' # ok\n", "t")
    place = document.place(("a", "c"))
    assert place is not None
    assert (place.key.line, place.key.column, place.written) == (3, 1, "'é'")
    assert document.place(("a", "b")) is None
    assert [comment.line for comment in document.comments()] == [3]


def test_a_text_with_a_fault_on_every_line_is_given_up() -> None:
    document = Document.parse("a = ]\n" * 1000, "t")
    assert document.fault is not None
    assert document.values == {}


def test_a_large_text_of_endless_keys_is_a_fault() -> None:
    text = "".join(f"[[x{number}.{'.'.join(['a'] * 100)}]]\n" for number in range(600))
    fault = Document.parse(text, "t").fault
    assert fault is not None
    assert fault.what == "a key of more than 64 parts"
    assert (fault.span.line, fault.span.column) == (1, 3)


def test_more_tables_than_memory_has_room_for_are_refused_before_they_are_read() -> None:
    few, many = ("".join(f"[t{number}]\n" for number in range(count)) for count in (50_000, 50_001))
    assert Document.parse(few, "run.toml").fault is None
    fault = Document.parse(many, "run.toml").fault
    assert fault is not None
    assert (fault.what, fault.span.line) == ("more than 50000 tables", 50_001)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_read_is_toml_in_its_place(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 5)))
    text = GOOD[:start] + data.draw(st.text("[]{}='\"\n#ab, ", max_size=4)) + GOOD[end:]
    document = Document.parse(text, "t")
    if document.fault is not None and document.readable:
        assert tomli.loads(document.readable) == document.values
        assert len(document.readable) == len(text)
        for line, written in zip(document.readable.split("\n"), text.split("\n"), strict=True):
            assert line == written or not line.strip()
