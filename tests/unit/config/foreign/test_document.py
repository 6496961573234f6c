"""YAML and JSON as PyYAML reads them, with places, within limits of size and depth."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config.foreign.document import is_json, read_documents
from prime_train.config.foreign.edit import edited_yaml
from prime_train.config.foreign.read import is_like_toml
from prime_train.toml.document import Document, dotted, patched
from prime_train.toml.edit import EditRefused

TEXT = """\
# top
base_model: m  # the model
lr: 1e-5
flag: no
count: 1_000
empty:
block: |
  # no comment
  text
list:
  - a: 1
    b: [x, y]
  - "c # no comment"
anchor: &one {k: 2}
alias: *one
merged:
  <<: *one
  l: 3
"""


def _read(text: str) -> Document:
    (document,) = read_documents(text, "a.yaml")
    return document


def test_values_are_those_of_pyyaml() -> None:
    assert _read(TEXT).values == yaml.safe_load(TEXT)


def test_each_key_has_its_place() -> None:
    document = _read(TEXT)
    place = document.place(("list", 0, "b"))
    assert place is not None
    assert (place.key.line, place.key.column, place.written) == (12, 5, "[x, y]")
    assert document.place(("block",)).value.end_line == 9  # type: ignore[union-attr]
    assert document.nearest(("merged", "k")).key.line == 16  # type: ignore[union-attr]
    assert document.place(("absent",)) is None


def test_comments_are_those_outside_of_texts() -> None:
    assert [(one.line, one.text, one.on_top) for one in _read(TEXT).comments()] == [
        (1, "# top", True),
        (2, "# the model", False),
    ]


def test_json_has_numbers_with_exponents_and_may_have_comments() -> None:
    document = _read('{\n\t"a": 5e8, // why\n\t"b": "http://x", /* c */ "c": [1,],\n}')
    assert document.values == {"a": 5e8, "b": "http://x", "c": [1]}
    assert document.place(("c",)).key.line == 3  # type: ignore[union-attr]


def test_a_key_that_stands_twice_is_noticed_with_both_lines() -> None:
    document = _read("a: 1\nb: 2\na: 3\n")
    assert document.values["a"] == 3
    assert [tuple(one) for one in document.written.repeated] == [(("a",), 1, 3)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a:\n\t- b\n", 2, "a tab begins the line"),
        ("a: b: c\n", 1, "a second colon in one line"),
        ("a: {{ x }}\n", 1, "a key is a table or a list"),
        ("a: @x\n", 1, "a value begins with @"),
        ("a: [1, 2\nb: 3\n", 2, "the line does not fit the lines above it"),
        ("a: *nothing\n", 1, "no anchor &nothing stands above its alias"),
        ("a: &x [*x]\n", 1, "no anchor &x stands above its alias"),
        ("[" * 100 + "]" * 100, 1, "it nests deeper than 64 tables"),
        ("[" * 100_000, 1, "the line does not fit the lines above it"),
        ("a: " + "{b: " * 100_000, 1, "it nests deeper than 64 tables"),
        ("a: \x00\n", 1, "a character that YAML does not allow"),
        ("x: " + "1" * 1_000_001, 1, "it has 1000004 characters, and a config has fewer than 1000000"),
    ],
    ids=["tab", "colon", "jinja", "at", "bracket", "alias", "itself", "deep", "open", "tables", "zero", "large"],
)
def test_a_fault_has_a_line_and_plain_words(text: str, line: int, what: str) -> None:
    fault = read_documents(text, "a.yaml")[-1].fault
    assert fault is not None
    assert (fault.span.line, fault.what) == (line, what)


def test_aliases_that_explode_are_refused_before_anything_walks_them() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    fault = read_documents("\n".join(lines), "a.yaml")[-1].fault
    assert fault is not None
    assert fault.what == "it has more than 200000 values, aliases included"


@pytest.mark.parametrize("text", ["# a # b" * 10_000, "// / /" * 10_000, "/* */ " * 10_000, " #\n" * 10_000])
def test_comments_above_a_text_are_passed_in_one_go(text: str) -> None:
    assert not is_json(text)
    assert is_json(text + "\n{")


_SLOW = {
    "comment": "{" + "/*" * 400_000,
    "quote": '{"' + '\\"' * 400_000,
    "base 60": "a: " + "1:" * 200_000 + "1",
    "lines": "\n" * 900_000,
    "comments": "# x\n" * 200_000 + "ignore[X",
    "anchors": "a: &b c\n" * 100_000,
}


@pytest.mark.parametrize("text", _SLOW.values(), ids=_SLOW.keys())
def test_a_text_that_would_take_minutes_is_read_in_seconds(text: str) -> None:
    """It ends: each text takes hours with an expression that tries again at each of its signs."""
    for document in read_documents(text, "a.yaml"):
        assert document.fault is not None or document.comments() == () or document.values == {}
    assert not is_like_toml(text)


def test_several_documents_are_read_and_a_list_is_none() -> None:
    assert [one.values for one in read_documents("a: 1\n---\n- x\n---\nb: 2\n", "a.yaml")] == [{"a": 1}, {"b": 2}]


def test_a_tag_runs_nothing() -> None:
    assert _read('a: !!python/object/apply:os.system ["false"]\nb: !!str 1\n').values == {"a": ["false"], "b": "1"}


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]))
)
_TREES: Any = st.recursive(
    _SCALARS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), below, max_size=4)
    ),
)
_TABLES = st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), _TREES, min_size=1, max_size=5)


@given(_TABLES, st.booleans())
def test_what_was_dumped_is_read_again(values: dict[str, Any], is_json: bool) -> None:
    text = json.dumps(values, indent=1) if is_json else yaml.safe_dump(values, sort_keys=False)
    document = _read(text)
    assert document.values == values
    assert all(document.place((key,)) is not None for key in values)


@given(_TABLES, st.sampled_from(["a", "b", "key", "c.d"]), _SCALARS)
def test_an_edit_changes_its_key_alone_or_is_refused(values: dict[str, Any], key: str, value: Any) -> None:
    text = yaml.safe_dump(values, sort_keys=False)
    try:
        after = edited_yaml(text, "a.yaml", {key: value})
    except (EditRefused, AttributeError, TypeError):
        return
    assert _read(after).values == patched(values, {key: value}), dotted((key,))


@pytest.mark.parametrize(
    ("patch", "line"),
    [
        ({"base_model": "other"}, "base_model: other  # the model"),
        ({"flag": True}, "flag: true"),
        ({"empty": 3}, "empty: 3"),
        ({"lr": 0.00001}, "lr: 1.0e-05"),
        ({"added": "two words"}, 'added: "two words"'),
        ({"list.0.a": 5}, "  - a: 5"),
        ({"anchor.k": 4}, "anchor: &one {k: 4}"),
    ],
)
def test_an_edit_keeps_comments_and_layout(patch: dict[str, Any], line: str) -> None:
    text = TEXT.replace("alias: *one\nmerged:\n  <<: *one\n  l: 3\n", "")
    after = edited_yaml(text, "a.yaml", patch)
    assert line in after.split("\n")
    assert len(set(after.split("\n")) - set(text.split("\n"))) == 1


@pytest.mark.parametrize(
    ("text", "key", "after"),
    [
        ("a: 1\n# about b\nb: 2  # two\nc: 3\n", "b", "a: 1\n# about b\nc: 3\n"),
        ("a: 1\nb:\n  - x\n  - y\n\nc: 3\n", "b", "a: 1\n\nc: 3\n"),
        ('{\n  "a": 1,\n  "b": 2\n}\n', "b", '{\n  "a": 1\n}\n'),
        ('{"a": 1, "b": 2}', "a", '{"b": 2}'),
        ("a: 1\nb:\nc: 3\n", "b", "a: 1\nc: 3\n"),
    ],
)
def test_a_key_is_taken_out(text: str, key: str, after: str) -> None:
    assert edited_yaml(text, "a.yaml", {key: None}) == after


def test_an_edit_behind_an_alias_is_refused() -> None:
    with pytest.raises(EditRefused):
        edited_yaml(TEXT, "a.yaml", {"anchor.k": 4})
