"""Reads the numbers of a config.json, each checked, or says which one is missing. Counts nothing, opens nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LARGEST = 2**31  # no size of a decoder comes near it: what does is a slip or an attack


class ShapeError(ValueError):
    """A config that tells no decoder: `field` is the key it is about ("" for the whole), `what` says why not."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.field = field
        self.what = what


class Numbers:
    """The values of one config, under the names that different families have for one thing."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = {**defaults, **{key: value for key, value in config.items() if value is not None}}

    def raw(self, *names: str) -> Any:
        """The first of the names that is set; None where none is."""
        return next((self._values[name] for name in names if name in self._values), None)

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` up. Raises ShapeError where it is missing, negative or absurd."""
        name = next((name for name in names if name in self._values), names[0])
        value = self._values.get(name, default)
        if value is None:
            raise ShapeError(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShapeError(name, f"is {_shown(value)}, and a whole number is wanted")
        if not least <= value < _LARGEST:
            raise ShapeError(name, f"is {value:.3g}, and a size of a decoder lies from {least} to 2^31")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false. Raises ShapeError where it is something else."""
        name = next((name for name in names if name in self._values), names[0])
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise ShapeError(name, f"is {_shown(value)}, and true or false is wanted")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words; () where it is missing. Raises ShapeError where it is something else."""
        value = self._values.get(name, ())
        if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ShapeError(name, f"is {_shown(value)}, and a list of words is wanted")
        return tuple(value)

    def table(self, name: str) -> Mapping[str, Any]:
        """A table; an empty one where it is missing. Raises ShapeError where it is something else."""
        value = self._values.get(name, {})
        if not isinstance(value, Mapping):
            raise ShapeError(name, f"is {_shown(value)}, and a table is wanted")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
