"""A script takes changes by `live.settings`: on all ranks at the same step, and again after a resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train import live
from prime_train.core.plans import ChangePlan, drop_plan, write_plan

ALONE = """
import json, sys
from prime_train import live
found = {}
first = int(sys.argv[1])
for step in range(first, 6):
    found[step + 1] = live.settings(step)
    live.step(step + 1)
print(json.dumps(found))
"""
TOGETHER = """
import json, os, sys, time
import torch.distributed as dist
from pathlib import Path
from prime_train import live
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
plan, late = Path(sys.argv[2]), Path(sys.argv[3])
found = []
for step in range(40):
    if step == 5 + 20 * rank:  # one rank has it twenty steps before the other
        late.joinpath(plan.name).write_bytes(plan.read_bytes())
    found.append(live.settings(step).get("lr"))
    live.step(step + 1)
    dist.barrier()
print(json.dumps(found))
"""


def variables(folder: Path, plans: Path, **more: str) -> dict[str, str]:
    reports = folder / "live"
    reports.mkdir(exist_ok=True, parents=True)
    return os.environ | {live.FOLDER_ENV: str(reports), live.PLANS_ENV: str(plans), **more}


def run_alone(folder: Path, first: int, **more: str) -> dict[str, object]:
    command = [sys.executable, "-c", ALONE, str(first)]
    done = subprocess.run(
        command, env=variables(folder, folder / "settings", **more), capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_without_a_supervisor_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(live.PLANS_ENV, raising=False)
    assert live.settings(3) == {}


def test_a_script_gets_the_newest_values_and_reports_the_version(tmp_path: Path) -> None:
    write_plan(tmp_path / "settings", ChangePlan(version=1, values={"lr": 0.1, "size": 3}, before={}))
    write_plan(tmp_path / "settings", ChangePlan(version=2, values={"lr": 0.2}, before={}))
    assert run_alone(tmp_path, 0) == {str(step): {"lr": 0.2, "size": 3} for step in range(1, 7)}
    [lines] = [path.read_text().splitlines() for path in (tmp_path / "live").iterdir()]
    assert [(line["settings"], line["first"]) for line in map(json.loads, lines) if "settings" in line] == [(2, 1)]


def test_a_resumed_script_makes_the_changes_at_their_steps(tmp_path: Path) -> None:
    for version, rate in enumerate((0.1, 0.2, 0.3), 1):
        write_plan(tmp_path / "settings", ChangePlan(version=version, values={"lr": rate}, before={}))
    applied = tmp_path / "applied.json"
    applied.write_text(json.dumps({"applied": [[1, 2], [2, 5]]}))
    found = run_alone(tmp_path, 2, **{live.APPLIED_ENV: str(applied)})
    # Version 3 has no step yet: it comes as soon as those before it are in force.
    assert found == {"3": {"lr": 0.1}, "4": {"lr": 0.1}, "5": {"lr": 0.3}, "6": {"lr": 0.3}}


def test_a_dropped_change_does_not_come_again(tmp_path: Path) -> None:
    for version, rate in enumerate((0.1, 0.2), 1):
        write_plan(tmp_path / "settings", ChangePlan(version=version, values={"lr": rate}, before={}))
    drop_plan(tmp_path / "settings", 2)
    assert run_alone(tmp_path, 0) == {str(step): {"lr": 0.1} for step in range(1, 7)}


def test_two_ranks_change_at_the_same_step(tmp_path: Path) -> None:
    write_plan(tmp_path / "settings", ChangePlan(version=1, values={"lr": 0.5}, before={}))
    plan = tmp_path / "settings" / "000001.json"
    ranks = []
    for rank in range(2):
        own = tmp_path / f"plans{rank}"
        own.mkdir()
        more = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, "-c", TOGETHER, str(tmp_path / "store"), str(plan), str(own)]
        ranks.append(subprocess.Popen(command, env=variables(tmp_path, own, **more), stdout=subprocess.PIPE, text=True))
    found = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert found[0] == found[1]
    # The later rank has it before its step 26.
    assert found[0] == [None] * 25 + [0.5] * 15
