"""A staged copy is a copy, in memory that the next save uses again."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.model.decoder import parameter_shapes
from prime_train.trainer.saves.staging import CopyPlace, Staging, plan_places, size_bytes, tensors
from tests.unit.trainer import tiny

CPU = torch.device("cpu")
MIB = 2**20


def state() -> dict[str, object]:
    return {
        "model": {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "odd": torch.randn(4, 6).t()},
        "optimizer": {"a": {"step": torch.tensor(3.0), "moment": torch.randn(3, 5)}},
        "reached": "text",
    }


def test_a_copy_is_equal_and_stays_when_the_original_changes() -> None:
    original = state()
    expected = [tensor.clone() for tensor in tensors(original)]
    staged = Staging(CPU).copy(original, None)
    for tensor in tensors(original):
        tensor.zero_()
    found = list(tensors(staged))
    assert [(tensor.dtype, tensor.shape) for tensor in found] == [(tensor.dtype, tensor.shape) for tensor in expected]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert staged["reached"] == "text"


def test_each_tensor_owns_just_its_bytes() -> None:
    """DCP clones a view of a larger storage before it writes it: one more copy of the state."""
    for tensor in tensors(Staging(CPU).copy(state(), None)):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_the_next_copy_takes_the_same_memory() -> None:
    staging = Staging(CPU)
    first, second = staging.copy(state(), None), staging.copy(state(), None)
    assert [t.data_ptr() for t in tensors(first)] == [t.data_ptr() for t in tensors(second)]


def test_a_larger_state_gets_more_memory() -> None:
    staging = Staging(CPU)
    staging.copy({"a": torch.ones(3)}, None)
    large = torch.randn(1000)
    copied = next(tensors(staging.copy({"a": {"b": large}}, None)))
    assert torch.equal(copied, large)


def test_size_counts_tensors_only() -> None:
    assert size_bytes({"a": {"b": torch.ones(3), "c": "text"}, "d": torch.ones(2, dtype=torch.int64)}) == 28


def occupied(sizes: list[int], places: list[CopyPlace]) -> list[tuple[int, int, int]]:
    """Piece, first byte and last byte + 1 of each tensor that has a byte, in order of their places."""
    found = zip(places, sizes, strict=True)
    return sorted((place.piece, place.offset_bytes, place.offset_bytes + size) for place, size in found if size)


@given(st.lists(st.integers(0, 3000) | st.integers(0, 40 * MIB), min_size=1, max_size=60), st.booleans())
def test_every_tensor_lies_in_one_piece_and_no_two_overlap(sizes: list[int], pinned: bool) -> None:
    places, pieces = plan_places(sizes, (), pinned=pinned)
    taken = occupied(sizes, places)
    assert all(end <= pieces[piece] and start % 64 == 0 for piece, start, end in taken)
    for (piece, _, end), (following, start, _) in pairwise(taken):
        assert piece < following or end <= start


@given(st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=60))
def test_pinned_pieces_are_powers_of_two_and_their_bytes_little_more_than_the_tensors(sizes: list[int]) -> None:
    """At most the largest tensor is missing in a piece, and half of the smallest piece."""
    _, pieces = plan_places(sizes, (), pinned=True)
    assert all(piece.bit_count() == 1 for piece in pieces)
    needed = sum(-(-size // 64) * 64 for size in sizes)
    assert needed <= sum(pieces) <= needed + len(pieces) * max(sizes) + MIB
    assert len(pieces) <= 2 + math.log2(sum(pieces))


@given(st.lists(st.integers(0, 3 * MIB), min_size=1, max_size=40), st.integers(1, 3 * MIB), st.booleans())
def test_the_same_tensors_keep_their_places_and_one_more_moves_no_memory(
    sizes: list[int], more: int, pinned: bool
) -> None:
    places, pieces = plan_places(sizes, (), pinned=pinned)
    assert plan_places(sizes, pieces, pinned=pinned) == (places, pieces)
    _, grown = plan_places([*sizes, more], pieces, pinned=pinned)
    assert grown[: len(pieces)] == pieces


@pytest.mark.parametrize(
    ("width", "mlp", "layers", "vocab"), [(2048, 5632, 24, 32768), (1024, 2816, 24, 50257), (768, 2048, 12, 50257)]
)
def test_a_training_state_is_pinned_with_at_most_two_percent_more(
    width: int, mlp: int, layers: int, vocab: int
) -> None:
    """Weights and two moments in fp32. One allocation would be rounded up to the next power of two."""
    config = replace(tiny.CONFIG, hidden_size=width, mlp_size=mlp, layers=layers, vocab_size=vocab)
    config = replace(config, heads=width // 64, kv_heads=width // 64, head_dim=64)
    sizes = [4 * math.prod(shape) for shape in parameter_shapes(config).values()] * 3
    _, pieces = plan_places(sizes, (), pinned=True)
    assert sum(pieces) <= 1.02 * sum(sizes)
