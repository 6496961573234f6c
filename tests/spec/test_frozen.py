"""The frozen dataclasses of the RunSpec behave as those of the standard library."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.spec import Optim, RunSpec
from prime_train.spec.frozen import frozen_dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The reference."""

    x: float
    names: tuple[str, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class OwnPoint:
    """The same with shared methods."""

    x: float
    names: tuple[str, ...] = ()


NAMES = st.lists(st.text(max_size=3), max_size=2).map(tuple)


@given(st.floats(), NAMES, st.floats(), NAMES)
def test_equality_hash_and_text_are_those_of_a_dataclass(
    x: float, names: tuple[str, ...], y: float, others: tuple[str, ...]
) -> None:
    reference, own = Point(x=x, names=names), OwnPoint(x=x, names=names)
    assert (own == OwnPoint(x=y, names=others)) is (reference == Point(x=y, names=others))
    assert hash(own) == hash(reference)
    assert repr(own) == f"Own{reference!r}"


def test_a_field_is_set_once() -> None:
    optim = Optim()
    with pytest.raises(FrozenInstanceError):
        optim.lr = 1.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del optim.lr
    assert optim != object()


def test_values_are_copied_pickled_and_replaced() -> None:
    for optim in (Optim(), replace(Optim(), lr=2.0)):
        assert copy.deepcopy(optim) == pickle.loads(pickle.dumps(optim)) == optim
        assert copy.deepcopy(optim) is not optim


def test_every_table_of_the_run_spec_has_the_shared_methods() -> None:
    assert {type(Optim()).__eq__, RunSpec.__eq__, OwnPoint.__eq__} == {OwnPoint.__eq__}
    assert {field.name for field in fields(RunSpec)} >= {"run", "data", "optim"}
