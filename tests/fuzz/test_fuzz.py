"""Cases of fixed seeds: damaged and killed runs end bit-equal, or in a clear error.

FUZZ_TIMES=40 plays so many times as many cases: 2,000 of hostile frames, answers, buckets and run directories.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
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


@pytest.mark.timeout(600 + 600 * TIMES)
@pytest.mark.parametrize(("module", "cases"), [("frames", 20), ("answers", 13), ("buckets", 14)])
def test_what_others_send_ends_in_no_exception(module: str, cases: int) -> None:
    assert played(f"tests.fuzz.{module}", "--cases", str(TIMES * cases))["failed_cases"] == 0


@pytest.mark.timeout(600 + 600 * TIMES)
def test_lost_files_configs_and_forged_records_end_in_a_clear_error() -> None:
    only = ("--only", "lose files", "resolved", "config", "forge")
    found = played("tests.fuzz", "--seed", "10000", "--cases", str(3 * TIMES), "--limit-s", "240", *only)
    assert found["failed_cases"] == 0


def test_a_killed_run_with_a_bucket_loses_no_checkpoint() -> None:
    found = played("tests.fuzz.bucket_kills", "--kills", str(6 * TIMES), "--per-case", "20")
    assert found["failed_cases"] == 0
