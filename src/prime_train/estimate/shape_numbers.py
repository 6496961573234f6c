"""Reads and checks the values of a config.json. Counts no parameters, opens no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LARGEST = 2**31  # far above any real size of a decoder; protects against mistakes and malicious files


class ShapeError(ValueError):
    """A config that describes no decoder. `field`: the wrong key ("" for the whole config); `what`: what is wrong."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.field = field
        self.what = what


class Numbers:
    """The values of one config. Each method takes several names, because families name the same size differently."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = {**defaults, **{key: value for key, value in config.items() if value is not None}}

    def raw(self, *names: str) -> Any:
        """The value of the first name that is set; None if none is."""
        return next((self._values[name] for name in names if name in self._values), None)

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` up. Raises ShapeError if it is missing, too small or absurd."""
        name = next((name for name in names if name in self._values), names[0])
        value = self._values.get(name, default)
        if value is None:
            raise ShapeError(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be a whole number")
        if not least <= value < _LARGEST:
            raise ShapeError(name, f"is {value:.3g}, but a size of a decoder lies between {least} and 2^31")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false. Raises ShapeError for any other value."""
        name = next((name for name in names if name in self._values), names[0])
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be true or false")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings; () if it is missing. Raises ShapeError for any other value."""
        value = self._values.get(name, ())
        if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be a list of strings")
        return tuple(value)

    def table(self, name: str) -> Mapping[str, Any]:
        """A table; empty if it is missing. Raises ShapeError for any other value."""
        value = self._values.get(name, {})
        if not isinstance(value, Mapping):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be a table")
        return value


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
