from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.watches.sample_lines import dump, load


class Pair(NamedTuple):
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    path: Path
    kind: Literal["whole", "broken"]
    steps: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """A value of each type that a sample has."""

    at_s: float
    count: int
    is_well: bool
    fault: str | None
    parts: tuple[Part, ...]
    pairs: tuple[Pair, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    first: tuple[int, str] | None = None
    nested: Part | None = None


texts, counts = st.text(max_size=8), st.integers(-(2**63), 2**63 - 1)
part_values = st.builds(Part, texts.map(Path), st.sampled_from(["whole", "broken"]), st.frozensets(counts, max_size=3))
looks = st.builds(
    Look,
    st.floats(allow_nan=False),
    counts,
    st.booleans(),
    st.none() | texts,
    st.lists(part_values, max_size=3).map(tuple),
    st.lists(st.builds(Pair, texts, counts), max_size=3).map(tuple),
    st.dictionaries(texts, counts, max_size=3),
    st.none() | st.tuples(counts, texts),
    st.none() | part_values,
)


@given(looks)
def test_a_value_comes_back(look: Look) -> None:
    assert load(Look, dump(look)) == look


PLAIN: dict[str, Any] = {
    "at_s": 1.5,
    "count": 2,
    "is_well": True,
    "fault": None,
    "parts": [{"path": "a", "kind": "whole"}],
    "pairs": [["x", 1]],
    "sizes": {"a": 1},
    "first": [1, "b"],
}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"at_s": "now"}, "$.at_s"),
        ({"at_s": True}, "$.at_s"),
        ({"count": 1.0}, "$.count"),
        ({"count": True}, "$.count"),
        ({"is_well": 1}, "$.is_well"),
        ({"fault": 5}, "$.fault"),
        ({"parts": None}, "$.parts"),
        ({"parts": [5]}, "$.parts[0]"),
        ({"parts": [{"path": 5, "kind": "whole"}]}, "$.parts[0].path"),
        ({"parts": [{"path": "a", "kind": "half"}]}, "$.parts[0].kind"),
        ({"parts": [{"kind": "whole"}]}, "$.parts[0]"),
        ({"parts": [{"path": "a", "kind": "whole", "steps": ["1"]}]}, "$.parts[0].steps[0]"),
        ({"pairs": [["x"]]}, "$.pairs[0]"),
        ({"pairs": [["x", 1, 2]]}, "$.pairs[0]"),
        ({"pairs": [{"name": "x", "size": 1}]}, "$.pairs[0]"),
        ({"sizes": {"a": "1"}}, "$.sizes.a"),
        ({"sizes": []}, "$.sizes"),
        ({"first": [1]}, "$.first"),
        ({"first": ["b", 1]}, "$.first[0]"),
        ({"nested": {}}, "$.nested"),
        ({"at_s": 10**400}, "$.at_s"),
        ({"first": [2**63, "b"]}, "$.first[0]"),
    ],
)
def test_any_other_value_is_an_error_that_names_its_place(changes: dict[str, Any], place: str) -> None:
    assert load(Look, PLAIN).first == (1, "b")
    with pytest.raises(ValueError, match=r"\S") as refused:
        load(Look, PLAIN | changes)
    assert str(refused.value).startswith(f"{place}: ")


@pytest.mark.parametrize("raw", ["[]", "5", "null", '"text"', '{"at_s": 1', ""])
def test_another_line_is_a_value_error(raw: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        load(Look, raw)
