from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.toml.did_you_mean import edit_distance, nearest

KEYS = ["micro_batch", "global_batch", "global_batch_tokens", "lr", "beta1", "beta2", "warmup_steps", "decay_steps"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("micro_bacth", "micro_batch"),
        ("microbatch", "micro_batch"),
        ("micro-batch", "micro_batch"),
        ("Micro_Batch", "micro_batch"),
        ("globalbatch", "global_batch"),
        ("batch_tokens_global", "global_batch_tokens"),
        ("warmup", "warmup_steps"),
        ("beta_2", "beta2"),
        ("rl", "lr"),
        ("telescope", None),
    ],
)
def test_nearest(name: str, meant: str | None) -> None:
    assert nearest(name, KEYS) == meant


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "", 0), ("ab", "ba", 1), ("abc", "", 3), ("kitten", "sitting", 3), ("ca", "abc", 3)]
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_edit_distance_is_symmetric_and_bounded(a: str, b: str) -> None:
    distance = edit_distance(a, b)
    assert distance == edit_distance(b, a)
    assert (distance == 0) == (a == b)
    assert abs(len(a) - len(b)) <= distance <= max(len(a), len(b))


@given(st.text("abc_", min_size=1, max_size=9), st.lists(st.text("abc_", min_size=1, max_size=9), max_size=6))
def test_no_candidate_is_nearer_than_the_nearest(name: str, candidates: list[str]) -> None:
    near = {
        candidate: edit_distance(name, candidate)
        for candidate in candidates
        if edit_distance(name, candidate) <= max(1, min(len(name), len(candidate)) // 3)
    }
    if near:
        assert nearest(name, candidates) == min(near, key=lambda candidate: (near[candidate], candidate))
