"""The estimate on the measured rows it was fitted to stays as near as docs/estimate.md says."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def test_the_report_of_the_measured_rows_keeps_within_what_is_told(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="the fits that the benchmark can repeat need numpy")
    report = tmp_path / "report.csv"
    command = [sys.executable, str(BENCH / "estimate_memory.py"), "--quick", "--alone", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with open(report, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 221
    bars = {"prime-rl": (0.025, 0.02), "other trainers": (0.06, 0.04)}  # mean and median, a little above what was told
    for group, (mean, median) in bars.items():
        off = [abs(float(row["estimated"]) / float(row["measured"]) - 1) for row in rows if row["group"] == group]
        assert statistics.mean(off) <= mean
        assert statistics.median(off) <= median
    over = [float(row["high"]) / float(row["measured"]) - 1 for row in rows]
    assert sum(each >= 0 for each in over) >= 0.95 * len(over)
    assert statistics.median(over) <= 0.15
