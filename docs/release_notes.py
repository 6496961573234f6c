"""Prints the section of CHANGELOG.md for a tag. Fails where tag, version and changelog disagree."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, version: str, changelog: str) -> str:
    """The text below `## VERSION - DATE`. Raises ValueError with the repair where something disagrees."""
    if tag != f"v{version}":
        raise ValueError(
            f"the tag is {tag}, pyproject.toml has version {version}: tag v{version}, or change the version"
        )
    heading = re.search(rf"^## {re.escape(version)}(?: - \d{{4}}-\d{{2}}-\d{{2}})?$", changelog, re.MULTILINE)
    if heading is None:
        raise ValueError(f"CHANGELOG.md has no section `## {version}`: rename `## Unreleased` to `## {version} - DATE`")
    section = re.split(r"^## ", changelog[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not section:
        raise ValueError(f"the section {version} of CHANGELOG.md is empty")
    return section


def main(tag: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        print(notes(tag, version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
