"""The notes of a release are its section of CHANGELOG.md; a tag that disagrees with the version stops the release."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
notes = runpy.run_path(str(ROOT / "docs" / "release_notes.py"))["notes"]

CHANGELOG = "# Changelog\n\n## Unreleased\n\n- b\n\n## 1.2.0 - 2026-11-01\n\n- a capability\n\n## 1.1.0\n\n- older\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes("v1.2.0", "1.2.0", CHANGELOG) == "- a capability"
    assert notes("v1.1.0", "1.1.0", CHANGELOG) == "- older"


@pytest.mark.parametrize(
    ("tag", "version", "message"),
    [
        ("v1.3.0", "1.2.0", "the tag is v1.3.0, pyproject.toml has version 1.2.0"),
        ("v1.3.0", "1.3.0", "no section `## 1.3.0`"),
        ("v1.2", "1.2", "no section `## 1.2`"),
    ],
)
def test_a_disagreement_is_named(tag: str, version: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        notes(tag, version, CHANGELOG)


def test_the_script_ends_with_an_error_for_a_tag_of_another_version() -> None:
    script = ROOT / "docs" / "release_notes.py"
    done = subprocess.run([sys.executable, script, "v999.0.0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the tag is v999.0.0" in done.stderr
