"""A trainer that does not get its cores is told so, and a folder of a run has its steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cli.profile.sources import read_file
from prime_train.core.spans import Span, Spans, read_spans
from prime_train.facts.host import read_throttled_s
from prime_train.profile.diagnosis import Setup, diagnose
from prime_train.profile.measurement import Measurement, measure
from prime_train.profile.report import Report, report_of
from tests.unit.profile.planted import trainer_steps

PARTS = [("data", 0.1), ("forward", 0.4), ("backward", 0.5)]
SETUP = Setup(micro_batch=2, global_batch=4, processes=1, cores=2, load=14.0, machine_cores=2)


def with_cpu(cores: float | None) -> list[Span]:
    """Steps in which computing used so many cores; None for a GPU."""
    return [
        replace(span, cpu_s=None if cores is None else (span.end_s - span.start_s) * cores)
        for span in trainer_steps(PARTS)
    ]


def measured(cores: float | None) -> Measurement:
    found = measure(with_cpu(cores), warm_up_steps=1)
    assert found is not None
    return found


def report(cores: float | None) -> Report:
    found = report_of("run", with_cpu(cores), 1, SETUP)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cores", "name"), [(0.3, "host-starved"), (0.97, "train-bound"), (1.8, "train-bound"), (None, "train-bound")]
)
def test_a_trainer_with_little_cpu_time_is_starved(cores: float | None, name: str) -> None:
    assert diagnose(measured(cores), SETUP).name == name


def test_the_limit_of_the_control_group_starves_as_well() -> None:
    assert diagnose(measured(0.97), SETUP._replace(throttled_s=2.0)).name == "host-starved"
    assert diagnose(measured(0.97), SETUP._replace(throttled_s=0.01)).name == "train-bound"


def test_a_starved_trainer_is_not_advised_more_devices() -> None:
    starved, working = report(0.3), report(1.8)
    assert starved.recommendations[0].kind == "host-starved"
    assert all("devices" not in each.text for each in starved.recommendations)
    assert any("devices" in each.text for each in working.recommendations)
    text = " ".join(starved.diagnosis.evidence)
    for words in ("0.30 cores", "of the 2", "14 threads wanted to run"):
        assert words in text


@given(st.floats(0.01, 64.0))
def test_the_cores_that_were_used_are_measured(cores: float) -> None:
    assert measured(cores).cpu_cores == pytest.approx(cores)


def test_a_span_has_the_cpu_time_of_its_process(tmp_path: Path) -> None:
    spans = Spans("trainer-rank0", str(tmp_path / "spans.jsonl"))
    with spans.span("forward"):
        sum(range(200_000))
    spans.add(Span("step", "", 0.0, 1.0))  # of a writer that measures no CPU time
    spans.flush()
    forward, step = read_spans(tmp_path / "spans.jsonl")
    assert forward.cpu_s is not None
    assert forward.cpu_s > 0
    assert step.cpu_s is None


def test_the_folder_of_a_run_has_its_steps(tmp_path: Path) -> None:
    row = {"data_s": 0.6, "forward_backward_s": 0.3, "optimizer_s": 0.05, "checkpoint_s": 0.05, "step_s": 1.0}
    rows = [{"step": step, "loss": 2.0, "peak_memory_gib": 1.5, **row} for step in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    collected = read_file(tmp_path)
    found = report_of(collected.title, collected.spans, 2, collected.setup, 5)
    assert found is not None
    assert found.diagnosis.name == "input-bound"
    assert found.measured.step_s == pytest.approx([1.0] * 5)
    assert found.measured.share("data") == pytest.approx(0.6)
    assert "order of the parts is assumed" in collected.notes[0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("nr_throttled 7\nthrottled_usec 2500000\n", 2.5), ("usage_usec 9\n", 0.0), ("odd\n", 0.0)]
)
def test_the_time_that_a_limit_took(text: str, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert read_throttled_s(tmp_path) == seconds
    assert read_throttled_s(tmp_path / "none") == 0.0
