"""What a heartbeat has of the settings: the keys and values that the editor of a run in the folder has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_train.bus.base import BusMessage
from prime_train.bus.fleet import EMPTY, fold_message
from prime_train.control.editor import read_editor
from prime_train.core.plans import ChangePlan, drop_plan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec, Source, to_json
from prime_train.spec.command import CommandSpec, DeclaredSetting
from prime_train.supervise.agent.present import PresentState
from tests.fakes.supervisor import fake_run

SETTINGS = (DeclaredSetting(name="lr", value=0.5), DeclaredSetting(name="width"))
LIMIT = "prime_train.heartbeat.step_limit_s"


def as_command(run: RunSpec) -> RunSpec:
    command = CommandSpec(argv=("python",), settings=SETTINGS)
    return replace(run, run=replace(run.run, kind="command"), command=command)


def as_server(run: RunSpec) -> RunSpec:
    return replace(run, run=replace(run.run, kind="serve"))


def with_two_sources(run: RunSpec) -> RunSpec:
    sources = (*run.data.sources, Source(kind="files", path="x"))
    return replace(run, data=replace(run.data, sources=sources, sampling_probs=(0.25, 0.75)))


KINDS: dict[str, Callable[[RunSpec], RunSpec]] = {
    "pretrain": lambda run: run,
    "two sources": with_two_sources,
    "command": as_command,
    "serve": as_server,
}


def prepare(folder: Path, kind: str, *changes: Mapping[str, Any]) -> RunDir:
    run, run_dir = KINDS[kind](fake_run(folder, 100)), RunDir(folder)
    run_dir.resolved.write_text(to_json(run))
    for version, values in enumerate(changes, 1):
        config = {key: run.optim.lr if key == "optim.lr" else None for key in values}
        write_plan(run_dir.settings, ChangePlan(version=version, values=dict(values), before={}, config=config))
    return run_dir


def read_values(run_dir: RunDir) -> dict[str, Any]:
    beat = PresentState(run_dir).read(0.0)
    found: dict[str, Any] = fold_message(EMPTY, BusMessage("pt.j.r.m1.hb", "b", beat), 1.0)["values"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_controller_has_the_keys_and_values_of_the_editor(tmp_path: Path, kind: str) -> None:
    run_dir = prepare(tmp_path, kind, {"prime_train.budget_usd": 7.5})
    shown = {one["key"]: one["value"] for one in read_editor(run_dir)["keys"]}
    found = read_values(run_dir)
    assert list(found.items()) == list(shown.items())
    assert (found["prime_train.budget_usd"], found["prime_train.cleanup.max_used_ratio"]) == (7.5, 0.85)
    assert found[LIMIT] is None
    assert ("optim.lr" in found) == (kind in ("pretrain", "two sources"))
    assert found.get("data.sampling_probs") == ([0.25, 0.75] if kind == "two sources" else None)
    assert found.get("lr") == (0.5 if kind == "command" else None)


def test_a_plan_that_is_not_in_force_changes_no_value(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path, "pretrain", {"optim.lr": 1.0}, {LIMIT: 30.0}, {LIMIT: 60.0}, {"lr": 1.0, LIMIT: 90.0})
    drop_plan(run_dir.settings, 3)
    found = read_values(run_dir)
    assert (found["optim.lr"], found[LIMIT]) == (1.0, 30.0)
    run = fake_run(tmp_path, 100)
    run_dir.resolved.write_text(to_json(replace(run, optim=replace(run.optim, lr=0.25))))
    assert read_values(run_dir)["optim.lr"] == 0.25, "its author saw the plan"


def test_a_config_that_lacks_a_table_shows_the_others(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path, "pretrain")
    run_dir.resolved.write_text(run_dir.resolved.read_text().replace('"heartbeat": {', '"beats": {'))
    found = read_values(run_dir)
    assert "optim.lr" in found
    assert LIMIT not in found
