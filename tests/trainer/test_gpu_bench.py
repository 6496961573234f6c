"""Every slot of bench/gpu_trainer.py runs with tiny sizes on a CPU, and without a GPU it measures nothing."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from prime_train.core.errors import ExitCode

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module("gpu_trainer")
        for name in ("gpu_trainer", "record", "anchors", "anchors.minimal"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("slot", ["kernels", "speed-124m", "speed-350m", "speed-1b", "estimate", "ablation"])
def test_a_slot_runs_on_a_cpu(
    bench: ModuleType, slot: str, texts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(bench.TITAN, raising=False)
    monkeypatch.setattr(bench.record, "write", None)  # a tiny slot writes nothing
    if slot == "ablation":  # the tokenizer of the standard library takes seconds to train
        monkeypatch.setattr(bench, "SOURCE", bench.spec.Source(kind="files", path=str(texts)))
    assert bench.main([slot, "--tiny"]) == ExitCode.OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows
    assert all(row["tiny"] for row in rows)
    if slot == "kernels":
        assert all(row["ok"] for row in rows)


def test_packed_documents_that_leak_are_found(bench: ModuleType) -> None:
    """The comparison of `kernels` would see one wrong boundary."""
    scale = bench.shrink(bench.SCALES["124m"])
    training = bench.training_of(scale, bench.Device(torch.device("cpu"), "CPU", "fp32", None))
    batch = bench.batch_of(scale, documents=3)
    apart = [*bench.separate(batch)]
    assert max(bench.find_errors(training, batch, apart)) < 1e-5
    leaking = bench.replace(batch, documents=torch.zeros_like(batch.documents))
    assert max(bench.find_errors(training, leaking, apart)) > 1e-3


def test_a_machine_without_a_gpu_is_told_so(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["kernels"]) == ExitCode.OUT_OF_REACH
    assert "there is no GPU" in capsys.readouterr().err


def test_a_slot_that_is_over_skips_its_cases(bench: ModuleType) -> None:
    cpu = bench.Device(torch.device("cpu"), "CPU", "fp32", None)
    rows = bench.compare_estimate(bench.Bench(cpu, tiny=True, until_s=0.0))
    assert [row["skipped"] for row in rows] == ["the time of the slot is over"] * 3


def test_the_speed_of_torchtitan_is_read_from_its_log(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(
        f"step: {step} loss: 8.1 tps: {speed} tflops: 9" for step, speed in enumerate(("1", "5,000", "5,100"))
    )
    monkeypatch.setenv(bench.TITAN, f"{sys.executable} -c \"print('{lines}')\"")
    cpu = bench.Device(torch.device("cpu"), "CPU", "fp32", None)
    tiny = bench.Bench(cpu, tiny=True, until_s=bench.time.monotonic() + 60)
    assert bench._titan_row(tiny, "124m")["median"] == 5050
    monkeypatch.setenv(bench.TITAN, "/gone")
    assert "gone" in bench._titan_row(tiny, "124m")["skipped"]
