"""A decorator for the frozen dataclasses of the RunSpec that are created at each start of a lint. Values only.

`dataclasses` imports `inspect`, and compiles six methods for each frozen class: together a sixth of the time of a lint
(measured on Python 3.11: 9 of 58 ms). The classes here share their methods. They become dataclasses when something
first asks for their fields: `dataclasses.fields`, `replace` and `asdict`, and pydantic.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["frozen_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import Field, replace
    from dataclasses import dataclass as frozen_dataclass
else:

    def frozen_dataclass(*, frozen: bool, slots: bool, kw_only: bool):
        """As `dataclasses.dataclass` with all three of its arguments; type checkers see that decorator."""
        if not (frozen and slots and kw_only):
            raise TypeError("the classes of a RunSpec are frozen, and have slots and named arguments")
        return _create

    def replace(value, **changes):
        """As `dataclasses.replace`, for the classes of this module."""
        return type(value)(**{name: getattr(value, name) for name in value._fields} | changes)


class _Fields:
    """Stands for `__dataclass_fields__` until it is read."""

    def __get__(self, _: object, owner: type) -> "dict[str, Field[Any]]":
        from dataclasses import dataclass

        cls: Any = next(base for base in owner.__mro__ if vars(base).get("__dataclass_fields__") is self)
        body = {"__doc__": "", "__module__": cls.__module__, "__annotations__": cls.__annotations__}
        plain: Any = type(cls.__name__, (), body | cls._field_defaults)
        cls.__dataclass_fields__ = dataclass(init=False, repr=False, eq=False, kw_only=True)(plain).__dataclass_fields__
        return cls.__dataclass_fields__  # type: ignore[no-any-return]


def _create(cls: type) -> type:
    """A class with the same methods, and a slot for each annotation. `_fields` and `_field_defaults` are named as in a
    named tuple."""
    fields = tuple(cls.__annotations__)
    defaults = {name: vars(cls)[name] for name in fields if name in vars(cls)}
    kept = {name: value for name, value in vars(cls).items() if name not in (*fields, "__dict__", "__weakref__")}
    own = {"__qualname__": cls.__qualname__, "__slots__": fields, "_fields": fields, "_field_defaults": defaults}
    return type(cls.__name__, cls.__bases__, kept | own | _METHODS | {"__dataclass_fields__": _Fields()})


def _init(self: Any, **values: Any) -> None:
    given = self._field_defaults | values
    for name in self._fields:
        if name not in given:
            raise TypeError(f"{type(self).__qualname__}() needs a value of {name!r}")
        object.__setattr__(self, name, given[name])
    if len(given) > len(self._fields):
        unknown = next(name for name in values if name not in self._fields)
        raise TypeError(f"{type(self).__qualname__}() has no field {unknown!r}")


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
    return f"{type(self).__qualname__}({values})"


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self._fields)


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _set(self: Any, name: str, value: Any) -> None:
    """Sets an attribute once: `copy` and `pickle` fill an empty value."""
    if hasattr(self, name):
        _delete(self, name)
    object.__setattr__(self, name, value)


def _delete(_: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change field {name!r}")


_METHODS = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _set,
    "__delattr__": _delete,
}
