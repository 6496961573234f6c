"""Tells which lines hold any of some hundred words, at the speed of reading them. Parses none of them.

Python's own `re` tries each word at each place: 80 s for 100 MB. The regex engine of pydantic-core searches for all of
them at once, in linear time whatever the text; pydantic is here anyway. Measured: bench/diagnose.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pydantic_core import SchemaValidator, core_schema

_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$#&~-])")


def holds_any(literals: Iterable[str], patterns: Iterable[str] = ()) -> Callable[[str], bool]:
    """Whether a text holds one of the literals, or of the (simple) patterns, whose ^ and $ are those of a line.
    Everything is in lower case."""
    escaped = (_SPECIAL.sub(r"\\\1", literal) for literal in sorted(set(literals)))
    schema = core_schema.str_schema(pattern="(?m)" + "|".join((*patterns, *escaped)), regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python
