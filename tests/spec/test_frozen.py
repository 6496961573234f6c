"""The frozen dataclasses of the RunSpec behave as those of the standard library."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, fields, is_dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from prime_train.spec import Optim, RunSpec, frozen
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


def test_its_own_replace_is_that_of_dataclasses() -> None:
    point = OwnPoint(x=1.0, names=("a",))
    assert frozen.replace(point, x=2.0) == replace(point, x=2.0) == OwnPoint(x=2.0, names=("a",))
    assert frozen.replace(point) is not point


@pytest.mark.parametrize(("cls", "values"), [(Point, {}), (OwnPoint, {}), (Point, {"y": 1}), (OwnPoint, {"y": 1})])
def test_a_missing_and_an_unknown_argument_are_named(cls: Callable[..., object], values: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="'x'" if not values else "'y'"):
        cls(**({"x": 1.0} if values else {}), **values)
    with pytest.raises(TypeError, match="positional"):
        cls(1.0)


def test_it_is_a_dataclass_for_other_modules() -> None:
    assert is_dataclass(OwnPoint)
    assert is_dataclass(OwnPoint(x=1.0))
    read = [[(field.name, field.type, field.default) for field in fields(cls)] for cls in (Point, OwnPoint)]
    assert read[0] == read[1]
    assert asdict(OwnPoint(x=1.0)) == {"x": 1.0, "names": ()}
    assert TypeAdapter(OwnPoint).validate_python({"x": 1, "names": ["a"]}) == OwnPoint(x=1.0, names=("a",))


def test_a_subclass_without_fields_of_its_own_has_those_of_its_base() -> None:
    class Named(OwnPoint):
        __slots__ = ()

    assert [field.name for field in fields(Named)] == ["x", "names"]
    assert Named(x=1.0) != OwnPoint(x=1.0)


def test_every_table_of_the_run_spec_has_the_shared_methods() -> None:
    assert {type(Optim()).__eq__, RunSpec.__eq__, OwnPoint.__eq__} == {OwnPoint.__eq__}
    assert {field.name for field in fields(RunSpec)} >= {"run", "data", "optim"}
