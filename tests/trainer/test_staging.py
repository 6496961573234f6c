"""A staged copy is a copy, in memory that the next save uses again."""

from __future__ import annotations

import torch

from prime_train.trainer.staging import Staging, size_bytes, tensors

CPU = torch.device("cpu")


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
