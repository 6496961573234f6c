"""Cases of fixed seeds: damaged and killed runs end bit-equal, or in a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def played(module: str, *options: str) -> dict[str, Any]:
    """The summary of `python -m MODULE`, in a process of its own because it adopts and ends orphans."""
    command = [sys.executable, "-m", module, *options]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return summary


def test_a_damaged_run_ends_bit_equal_or_in_a_clear_error() -> None:
    assert played("tests.fuzz", "--cases", "12", "--limit-s", "240")["cases"] == 12


def test_a_killed_run_ends_bit_equal_and_leaves_nothing() -> None:
    assert played("tests.fuzz.kills", "--cases", "3", "--variant", "packing")["failed_cases"] == 0
