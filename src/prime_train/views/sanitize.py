"""Parts that several views share: paint, JSON objects, Markdown, and text from outside made safe to print. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Paint = Callable[[str, str], str]  # (text, style) -> text, in colour if the terminal supports it

# C0 and C1 except newline and tab, because an escape sequence in a sample or a log line would control the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def sanitize(text: str) -> str:
    """`text` with a replacement character for each control character except newlines and tabs."""
    return _CONTROL.sub("\ufffd", text)


def pick(source: object, *names: str) -> dict[str, Any]:
    """The named attributes of `source`, in this order, as a JSON object."""
    return {name: getattr(source, name) for name in names}


def explain(source: Any) -> list[tuple[str, str]]:
    """The parts what, why and fix that `source` has, each after its name."""
    return [(name, text) for name in ("what", "why", "fix") if (text := getattr(source, name))]
