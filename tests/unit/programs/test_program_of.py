"""The program of a run is chosen from its RunSpec, by name where `run.program` gives one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from prime_train import spec
from prime_train.config import detect
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs import program_of, recorded
from prime_train.rules.explain import BASE, BASES
from prime_train.spec import ProgramName, RunSpec
from prime_train.spec.answers import program_name
from prime_train.spec.server import Server


def run_of(text: str) -> RunSpec:
    run = detect.read(text, "run.toml").run
    assert run is not None
    return run


TRAINS = run_of(BASE)
SERVES = replace(TRAINS, run=replace(TRAINS.run, kind="serve"), server=Server(model="m"))
RUNS = {
    "command": (run_of(BASES["command"]),),
    "bundled": (TRAINS, replace(TRAINS, server=Server(model="m"))),
    "vllm": (SERVES,),
    "prime_rl": tuple(run_of(text) for base, text in BASES.items() if base.startswith("prime-rl")),
}


@pytest.mark.parametrize("name", sorted({*get_args(ProgramName)} - {"auto"}))
def test_the_parts_of_a_config_name_its_program(name: str) -> None:
    for run in RUNS[name]:
        assert (program_name(run), program_of(run).name) == (name, name)


def test_a_name_counts_before_the_parts() -> None:
    assert program_name(replace(TRAINS, run=replace(TRAINS.run, program="vllm"))) == "vllm"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_begun_before_programs_had_names_goes_on_under_its_own(name: str, tmp_path: Path) -> None:
    document = json.loads(spec.to_json(RUNS[name][0]))
    del document["run"]["program"]
    (tmp_path / "resolved.json").write_text(json.dumps(document))
    program, run = recorded(RunDir(tmp_path))
    assert (program.name, run) == (name, RUNS[name][0])


def test_a_directory_that_reports_no_run_counts_as_the_bundled_trainers(tmp_path: Path) -> None:
    assert recorded(RunDir(tmp_path))[0].name == "bundled"
    (tmp_path / "resolved.json").write_text("{")
    assert recorded(RunDir(tmp_path), strict=False)[0].name == "bundled"
    with pytest.raises(UserError, match="cannot be read"):
        recorded(RunDir(tmp_path))
