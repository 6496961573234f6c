"""What the steps on a GPU compare, and the table of measured beside expected."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.hardware import hardware_from_name
from tests.unit.bench.modules import BENCH, imported

ROOT = BENCH.parent
CARDS = ("1xh100-80gb", "1xh200")


class Bench(NamedTuple):
    """A step on a GPU, without one."""

    rows: Path
    on_gpu: bool = True


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    names = ("training", "kernels", "gaps", "speed", "resume", "memory", "expected", "table", "steps")
    with imported(*(f"gpu.{name}" for name in names)) as found:
        yield dict(zip(names, found, strict=True))


def test_packed_documents_that_leak_are_found(bench: dict[str, ModuleType]) -> None:
    """The comparison of `kernels` would see one wrong boundary."""
    training, kernels = bench["training"], bench["kernels"]
    scale = training.shrink(training.SCALES["124m"])
    ready = training.training_of(scale, training.Device(torch.device("cpu"), "CPU", "fp32", None))
    batch = training.batch_of(scale, documents=3)
    apart = [*kernels.separate(batch)]
    assert max(kernels.find_errors(ready, batch, apart)) < 1e-5
    leaking = training.replace(batch, documents=torch.zeros_like(batch.documents))
    assert max(kernels.find_errors(ready, leaking, apart)) > 1e-3


def test_a_case_in_fp32_plans_no_flash_attention(bench: dict[str, ModuleType]) -> None:
    training = bench["training"]
    gpu = training.Device(torch.device("cpu"), "a GPU", "bf16", 1e15, flash_attention=True)
    scale = training.shrink(training.SCALES["124m"])
    found = [training.training_of(scale._replace(compute=kind), gpu).device for kind in ("fp32", "bf16")]
    assert [(one.compute, one.flash_attention) for one in found] == [("fp32", False), ("bf16", True)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12))
def test_the_busy_part_is_the_union_of_the_spans(bench: dict[str, ModuleType], drawn: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in drawn]
    covered = {moment for start, end in spans for moment in range(start, end)}
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    assert bench["gaps"].busy_ratio(spans) == pytest.approx(len(covered) / whole)


def test_copies_and_named_spans_are_no_kernels(bench: dict[str, ModuleType]) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profiled, torch.profiler.record_function("a whole step"):
        torch.ones(4).sum()
    events = profiled.events()
    assert events is not None
    kernels = [event.name for event in events if bench["gaps"].is_kernel(event)]
    assert "aten::sum" in kernels
    assert "a whole step" not in kernels


def test_waits_of_the_host_are_counted_with_their_lines(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch warns of each wait, and of others; a step that waits twice in one line has two."""
    gaps, modes = bench["gaps"], list[str]()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def take_steps(_training: object, _batches: object, count: int) -> None:
        for _ in range(count if modes else 0):
            warnings.warn("another warning", stacklevel=1)
            for _ in range(2):
                warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)

    monkeypatch.setattr(gaps, "take_steps", take_steps)
    found = gaps._count_syncs(Bench(tmp_path), None, None)
    assert found["host_syncs"] == 2
    assert list(found["sync_places"].values()) == [2 * gaps.PROFILED_STEPS]
    assert modes == ["warn", "default"]


def test_samples_of_the_driver_are_summed_up(bench: dict[str, ModuleType]) -> None:
    lines = [
        {"gpus": [{"index": 0, "used_bytes": 2**30, "utilisation_percent": None, "uses": []}]},
        {"code": 31},
        {"gpus": [{"index": 0, "used_bytes": 2**31, "utilisation_percent": 80, "uses": [{"pid": 1}]}]},
        {"gpus": [{"index": 0, "fault": "lost"}]},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"gpus": [{"us'
    found = bench["resume"]._summarise(text)
    assert (found["samples"], found["utilisation_percent"], found["used_gib"]) == (3, 80, 2.0)
    assert (found["processes"], found["faults"], found["answer"]) == (1, ["lost"], lines[0])
    assert bench["resume"]._summarise("")["used_gib"] is None


def test_memory_is_compared_with_the_interval_of_the_estimate(bench: dict[str, ModuleType]) -> None:
    memory = bench["memory"]
    hardware = hardware_from_name("1xh100-80gb")
    for scale in memory.CASES:
        predicted = round(
            memory.compare(scale, {"reserved": 2**30, "allocated": 2**30}, hardware)["predicted_gib"] * 2**30
        )
        found = memory.compare(scale, {"reserved": predicted, "allocated": predicted}, hardware)
        assert abs(found["error"]) < 1e-3
        assert found["inside"]
        assert not memory.compare(scale, {"reserved": 2 * predicted, "allocated": predicted}, hardware)["inside"]
        assert predicted < 80e9


# --- expectations ---------------------------------------------------------------------------------


def test_the_expected_times_and_memory_are_those_of_the_estimate(bench: dict[str, ModuleType]) -> None:
    """So a change of the estimate changes what a session is compared with."""
    expected, speed = bench["expected"], bench["speed"]
    for name, scale in bench["training"].SCALES.items():
        predicted = [speed.predict(scale, hardware_from_name(card)) for card in CARDS]
        bounds = {
            one.key: one
            for one in expected.EXPECTATIONS
            if (one.step, one.source) == (f"speed-{name}", expected.ESTIMATE)
        }
        step_ms, reserved = bounds["step_ms"], bounds["reserved_gib"]
        assert step_ms.low == pytest.approx(min(one["predicted_ms_low"] for one in predicted), abs=1)
        assert step_ms.high == pytest.approx(max(one["predicted_ms_high"] for one in predicted), abs=1)
        assert reserved.low == pytest.approx(predicted[0]["predicted_gib_low"], abs=0.1)
        assert reserved.high == pytest.approx(predicted[0]["predicted_gib_high"], abs=0.1)


def test_no_goal_is_out_of_the_reach_that_the_estimate_predicts(bench: dict[str, ModuleType]) -> None:
    """A published figure, scaled to the card, lies in the predicted interval of a model of a billion parameters."""
    scale, peak = bench["training"].SCALES["1b"], 989e12
    for card in CARDS:
        predicted = bench["speed"].predict(scale, hardware_from_name(card))
        for one in bench["expected"].PUBLISHED:
            step_ms = 1e3 * scale.flops / peak / one.mfu
            assert predicted["predicted_ms_low"] <= step_ms <= predicted["predicted_ms_high"], one.name


def entry(step: str, *rows: dict[str, Any], **values: Any) -> dict[str, Any]:
    about = {"card": "NVIDIA H200", "torch": "2.11.0+cu130", "date": "2026-11-28", "commit": "abc"}
    return {"step": step, "ended": "ok", "rc": 0, "seconds": 1.0, "rows": [*rows]} | about | values


def show(bench: dict[str, ModuleType], folder: Path, *entries: dict[str, Any]) -> str:
    path = folder / "gpu_a.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    text: str = bench["table"].show([path, folder / "gone.json"])
    return text


def test_the_table_has_measured_beside_expected(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    ours = {"what": "prime-train", "step_ms": 60.0, "mfu": 0.475, "flops": 28e12, "peak_flops": 989e12}
    ours |= {"predicted_ms": 84, "predicted_ms_low": 57, "predicted_ms_high": 152, "predicted_for": "H200"}
    hand = {"what": "hand-written loop", "step_ms": 57.0, "mfu": 0.5, "prime_train_speed": 0.95}
    kernels = [{"what": f"{length} tokens, fp32", "error": error} for length, error in ((256, 1e-7), (8192, "nan"))]
    text = show(bench, tmp_path, entry("speed-124m", ours, hand), entry("kernels", *kernels))
    assert "NVIDIA H200, torch 2.11.0+cu130, 2026-11-28, commit abc" in text
    assert "| speed-124m | prime-train | step_ms | 60 | 60 to 172 | yes |" in text
    assert "| speed-124m | hand-written loop | prime_train_speed | 0.95 | at least 1 | **no** | goal |" in text
    assert "| kernels | fp32 | error | 1e-07, nan | at most 1e-05 | **no** |" in text
    assert "| kernels | bf16 | error | not measured | at most 0.02 |  |" in text
    assert (
        "| speed-124m | 60.0 (0.475) | 57.0 (0.500) | 0.950 | 84 (57 to 152), H200 | 72.6 (0.390) | 56.6 (0.500) |"
        in text
    )
    assert "| gaps |" not in text


def test_the_table_names_what_failed_and_judges_nothing_tiny(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    failed = {"what": "losses", "failed": "RuntimeError: a | b"}
    skipped = entry("fp8", ended="skipped", tail="not installed here: torchao")
    tiny = entry("moe", {"what": "grouped product", "error": 5.0, "tiny": True}, tiny=True)
    text = show(bench, tmp_path, entry("fsdp1", failed, ended="exit code 1"), skipped, tiny)
    assert "| fsdp1 | exit code 1 | 1.0 | losses: RuntimeError: a / b |" in text
    assert "| fp8 | skipped: not installed here: torchao | 1.0 |  |" in text
    assert "| moe | grouped product | error | 5 | at most 0.01 |  |" in text
    assert bench["table"].show([tmp_path / "gone.json"]) == "Nothing is measured.\n"


# --- the list of what was never measured ----------------------------------------------------------


def test_the_page_names_every_step_and_only_real_ones(bench: dict[str, ModuleType]) -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    unknown, session = page.split("## Fifteen minutes with a GPU")
    named = {
        name
        for line in session.splitlines()
        if line.startswith("| ")
        for name in line.split("|")[1].strip().split(", ")
    }
    steps = {step.name for step in bench["steps"].STEPS}
    assert named - {"step"} == steps
    answered = {
        name
        for line in unknown.splitlines()
        if line.startswith("| ")
        for name in line.split("|")[3].strip().split(", ")
    }
    assert answered - {"step", "none"} == steps - {"env"}


def test_what_was_never_measured_is_listed_in_one_place() -> None:
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py")]
    never = re.compile(
        r"(?:never|not yet|not|none of \S+) (?:was |were )?(?:ever )?(?:run|timed) on (?:a GPU|one)", re.IGNORECASE
    )
    found = [path.name for path in files if never.search(path.read_text(encoding="utf-8"))]
    assert found == []
    for preset in ROOT.glob("presets/*.toml"):
        lines = [line for line in preset.read_text(encoding="utf-8").splitlines() if never.search(line)]
        assert all("It was never run on a GPU (docs/gpu.md)." in line for line in lines), preset.name
        assert not lines or f"`{preset.stem}`" in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
