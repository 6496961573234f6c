"""Reads the keys of a model card's front matter that a verdict needs. Not a full YAML parser. Pure."""

from __future__ import annotations

import re

_KEYS = frozenset(("license", "license_name", "license_link", "pipeline_tag", "library_name", "base_model"))
_LINE = re.compile(r"^([a-z_]+):[ \t]*(.*)$")


def front_matter(text: str) -> dict[str, str]:
    """Key -> text, from the block between the two `---` lines at the top; for a list, its first element.

    Source: huggingface.co/docs/hub/model-cards, metadata.
    """
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    found: dict[str, str] = {}
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return found
        match = _LINE.match(line)
        if match:
            key = match[1]
            if key in _KEYS and _plain(match[2]):
                found[key] = _plain(match[2])
        elif key in _KEYS and key not in found and line.lstrip().startswith("- "):
            found[key] = _plain(line.lstrip()[2:])
    return {}  # the block is not closed, so it is no front matter


def _plain(value: str) -> str:
    return value.partition(" #")[0].strip().strip("[]").partition(",")[0].strip().strip("\"'")
