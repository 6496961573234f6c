"""The test of a GPU with SuperBench: a stand-in for `sb` writes the results of its version 0.12 from a process."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.rundir import RunDir
from prime_train.events import GpuTested
from prime_train.supervise.services.gpu_test import GpuTest
from prime_train.supervise.services.superbench import BenchVerdict, judge_results

PROGRAM = Path(__file__).parents[3] / "fakes" / "sb_program.py"
DEADLINE_S = 120.0


class Bench:
    """The `sb` of this machine. `orders`: as tests/fakes/sb_program.py has them."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.file = RunDir(folder / "run"), folder / "orders.json"
        self.order({})

    def order(self, orders: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(orders))

    def test(self, *gpus: str) -> dict[str, GpuTested]:
        """The results of a test, by GPU."""
        test, found = GpuTest(self.run_dir), dict[str, GpuTested]()
        try:
            test.run("drain-1", gpus)
            until_s = time.monotonic() + DEADLINE_S
            while len(found) < len(gpus) and time.monotonic() < until_s:
                found |= {one.gpu: one for one in test.results()}
                time.sleep(0.02)
        finally:
            test.end()
        return found

    @property
    def log(self) -> str:
        return (self.run_dir.watches / "gpu_test.log").read_text()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    sb = tmp_path / "bin" / "sb"
    sb.parent.mkdir()
    sb.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} "$@"\n')
    sb.chmod(0o755)
    found = Bench(tmp_path)
    monkeypatch.setenv("PATH", f"{sb.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SB", str(found.file))
    return found


def test_a_gpu_passes_that_superbench_finds_well(bench: Bench) -> None:
    found = bench.test("GPU-1", "GPU-2")
    assert [one.passed for one in found.values()] == [True, True]
    assert {one.what for one in found.values()} == {"SuperBench 0.12.0: gpu-burn, gpu-copy-bw:correctness right"}


def test_a_gpu_fails_that_computes_wrongly_although_the_return_code_is_0(bench: Bench) -> None:
    bench.order({"GPU-1": {"gpu-burn": "wrong"}, "GPU-2": {"gpu-copy-bw:correctness": "fails"}})
    found = bench.test("GPU-0", "GPU-1", "GPU-2")
    assert {gpu: one.passed for gpu, one in found.items()} == {"GPU-0": True, "GPU-1": False, "GPU-2": False}
    assert "wrong results ('gpu_0_pass' is 0)" in found["GPU-1"].what
    assert "return code 32" in found["GPU-2"].what


@pytest.mark.parametrize("does", ["missing", "raises", '[{"return_code": 0, "result": {"gpu_0_pass": "yes"}}]'])
def test_a_gpu_that_superbench_cannot_judge_gets_the_own_test(bench: Bench, does: str) -> None:
    bench.order({"GPU-1": dict.fromkeys(("gpu-burn", "gpu-copy-bw:correctness"), does)})
    found = bench.test("GPU-0", "GPU-1")
    assert found["GPU-0"].what.startswith("SuperBench")
    # There is no GPU here, so the own test fails. Its result is not one of SuperBench.
    assert not found["GPU-1"].passed
    assert "SuperBench" not in found["GPU-1"].what


def test_another_program_of_that_name_is_not_run(bench: Bench) -> None:
    bench.order({"version": "a switchboard"})
    found = bench.test("GPU-1")
    assert "SuperBench" not in found["GPU-1"].what
    assert not (bench.run_dir.watches / "superbench").exists()


def test_the_end_of_a_test_ends_the_programs_of_superbench(bench: Bench, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    bench.order({"hang": "GPU-1", "pid_file": str(pid_file)})
    test = GpuTest(bench.run_dir)
    test.run("drain-1", ["GPU-1"])
    until_s = time.monotonic() + DEADLINE_S
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < until_s:
        time.sleep(0.02)
    burn = psutil.Process(int(pid_file.read_text()))
    test.end()
    psutil.wait_procs([burn], timeout=DEADLINE_S)
    assert not burn.is_running() or burn.status() == psutil.STATUS_ZOMBIE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["return_code", "result", "abort", "gpu_0_pass", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=3))
def test_what_is_no_result_is_a_value_error_and_nothing_else(contents: dict[str, object]) -> None:
    try:
        verdict = judge_results(contents)
    except ValueError:
        return
    assert len(verdict.passed) + len(verdict.failed) <= len(contents)


def entry(code: int, **metrics: list[float]) -> dict[str, object]:
    return {"name": "n", "return_code": code, "result": {"return_code": [code], **metrics}}


@given(st.integers(0, 200))
def test_a_benchmark_that_could_not_run_proves_nothing(code: int) -> None:
    verdict = judge_results({"a": [entry(code)]})
    assert verdict.is_known == (code in (0, 4, 32, 35, 124))
    assert bool(verdict.passed) == (code == 0)


def test_one_failure_among_many_runs_fails_a_benchmark() -> None:
    assert judge_results({"a": [entry(0), None, entry(32)]}).failed == ("a: its program failed (return code 32)",)
    assert judge_results({"a": [entry(33, abort=[1])]}).failed == ("a: it was broken off",)
    assert judge_results({"a": [entry(33)], "b": [None], "c": []}) == BenchVerdict()
