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
from prime_train.live_plans import ScriptPlans
from tests.full_tables import no_free_descriptor

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
    assert reported(tmp_path) == [(1, 1), (2, 1)]


def reported(folder: Path) -> list[tuple[int, int]]:
    """The versions that the script has taken, with their first steps."""
    [lines] = [path.read_text().splitlines() for path in (folder / "live").iterdir()]
    return [(line["settings"], line["first"]) for line in map(json.loads, lines) if "settings" in line]


def test_a_resumed_script_makes_the_changes_at_their_steps(tmp_path: Path) -> None:
    for version, rate in enumerate((0.1, 0.2, 0.3), 1):
        write_plan(tmp_path / "settings", ChangePlan(version=version, values={"lr": rate}, before={}))
    applied = tmp_path / "applied.json"
    applied.write_text(json.dumps({"applied": [[1, 2], [2, 5]]}))
    found = run_alone(tmp_path, 2, **{live.APPLIED_ENV: str(applied)})
    # Version 3 has no step yet: it comes as soon as those before it are in force.
    assert found == {"3": {"lr": 0.1}, "4": {"lr": 0.1}, "5": {"lr": 0.3}, "6": {"lr": 0.3}}


def resumed(folder: Path, applied: list[list[int]], versions: int) -> list[dict[str, float]]:
    """The values of steps 3 to 6 in a script that resumes at step 2 and never names its step."""
    for version in range(1, versions + 1):
        plan = ChangePlan(version=version, values={"lr": version / 10}, before={})
        write_plan(folder / "settings", plan)
    (folder / "applied.json").write_text(json.dumps({"applied": applied}))
    steps = {live.APPLIED_ENV: str(folder / "applied.json"), live.STEP_ENV: "2"}
    command = [sys.executable, "-c", ALONE.replace("live.settings(step)", "live.settings()"), "2"]
    environment = variables(folder, folder / "settings", **steps)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout).values())


def test_a_resumed_script_knows_its_step_before_it_reports_one(tmp_path: Path) -> None:
    assert resumed(tmp_path, [[1, 2], [2, 5]], 2) == [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}, {"lr": 0.2}]
    # The step of version 1 stays that of the attempt which began with it: going back to step 2 must keep it.
    assert reported(tmp_path) == [(1, 2), (2, 5)]


def test_an_overtaken_change_comes_with_the_one_after_it(tmp_path: Path) -> None:
    assert resumed(tmp_path, [[2, 5]], 2) == [{}, {}, {"lr": 0.2}, {"lr": 0.2}]
    assert reported(tmp_path) == [(1, 5), (2, 5)]


def test_a_dropped_change_of_a_later_step_does_not_come_again(tmp_path: Path) -> None:
    drop_plan(tmp_path / "settings", 2)
    assert resumed(tmp_path, [[1, 2], [2, 3]], 3) == [{"lr": 0.3}] * 4


def test_a_plan_that_cannot_be_read_for_a_moment_is_looked_for_again(tmp_path: Path) -> None:
    write_plan(tmp_path, ChangePlan(version=1, values={"lr": 0.1}, before={}))
    notes: list[str] = []
    plans = ScriptPlans(str(tmp_path), "", notes.append)
    with no_free_descriptor():
        assert plans.find_newest(0) == 0
    assert plans.find_newest(0) == 1
    assert (list(plans.go_to(1, 0)), plans.values, notes) == ([(1, 1)], {"lr": 0.1}, [])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"values": 3}', "\x80"])
def test_a_file_that_is_no_plan_is_noted_and_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "000001.json").write_bytes(content.encode("latin-1"))
    write_plan(tmp_path, ChangePlan(version=2, values={"lr": 0.1}, before={}))
    notes: list[str] = []
    plans = ScriptPlans(str(tmp_path), "", notes.append)
    assert plans.find_newest(0) == 2
    assert len(list(plans.go_to(2, 0))) == 2
    assert (plans.values, notes) == ({"lr": 0.1}, ["settings version 1 is no plan: it is left out"])


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
