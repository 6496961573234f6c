"""The steps that [profile] names are traced, and no others; a trace that cannot be written ends no training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from prime_train import spec
from prime_train.core.spans import TRACE_ENV
from prime_train.spec import RunSpec
from prime_train.trainer.loops.step_spans import NO_TRACES, plan_traces
from tests.unit.trainer import tiny

CPU = torch.device("cpu")


def run_of(*steps: int, memory_snapshot: bool = False) -> RunSpec:
    return tiny.run_spec(Path("/texts"), profile=spec.Profile(steps=steps, memory_snapshot=memory_snapshot))


def work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def test_the_named_steps_have_a_trace_with_their_operations(tmp_path: Path) -> None:
    traces = plan_traces(run_of(2, 3), tmp_path / "profile", 0, CPU)
    for step in range(1, 5):
        with traces.step(step):
            work()
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "step_2.trace.json.gz",
        "step_3.trace.json.gz",
    ]
    with gzip.open(tmp_path / "profile" / "step_3.trace.json.gz", "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "aten::matmul" in names


def test_only_rank_0_traces_and_only_a_gpu_has_a_memory_snapshot(tmp_path: Path) -> None:
    run = run_of(2, memory_snapshot=True)
    assert plan_traces(run, tmp_path, 1, CPU) == NO_TRACES
    assert plan_traces(run, tmp_path, 0, CPU).memory == {}
    assert plan_traces(run, tmp_path, 0, torch.device("cuda")).memory == {2: tmp_path / "step_2.memory.pickle"}
    assert plan_traces(run_of(2), tmp_path, 0, torch.device("cuda")).memory == {}
    assert plan_traces(run_of(), tmp_path, 0, CPU) == NO_TRACES


def test_a_profile_names_its_own_step_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACE_ENV, f"7:{tmp_path / 'one.json'}")
    traces = plan_traces(run_of(), tmp_path / "profile", 0, CPU)
    with traces.step(7):
        work()
    assert json.loads((tmp_path / "one.json").read_text())["traceEvents"]
    assert not (tmp_path / "profile").exists()


def test_a_trace_that_cannot_be_written_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile").write_text("a file in the place of the folder")
    with plan_traces(run_of(1), tmp_path / "profile", 0, CPU).step(1):
        work()
    assert "was not written" in capsys.readouterr().err
