"""Every step of a session on a GPU runs on a CPU, with tiny sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.bench.test_gpu_session import run_tiny
from tests.unit.bench.modules import BENCH, imported


@pytest.mark.spread
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", ["A", "B"])
def test_every_step_runs_on_a_cpu(part: str, tmp_path: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (BENCH / "results").iterdir())
    entries = run_tiny(tmp_path, part)
    with imported("gpu.steps") as (steps,):
        names = [step.name for step in steps.STEPS if step.part == part]
    assert [(entry["step"], entry["ended"], entry["rc"]) for entry in entries] == [(name, "ok", 0) for name in names]
    rows = [row for entry in entries for row in entry["rows"]]
    assert all(row["tiny"] and row["device"] == "cpu" for row in rows)
    assert not [row for row in rows if row.get("ok") is False or "failed" in row]
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (BENCH / "results").iterdir()) == before
    if part == "B":
        killed = next(row for row in rows if row["what"] == "killed and resumed")
        assert (killed["attempts"], killed["difference"]) == (2, 0.0)
        assert killed["resumed_at"] > 0
