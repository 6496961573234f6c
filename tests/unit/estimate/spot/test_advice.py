from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.estimate.spot.advice import Saves, advise_saves, assume_saves, compute_excess, describe_excess
from prime_train.spec import Checkpoint, RunSpec

ROOT = Path(__file__).resolve().parents[4]


def preset(name: str) -> RunSpec:
    text = (ROOT / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    run = detect.read(text, f"{name}.toml").run
    assert run is not None
    return run


def long_run(interval_steps: int | None) -> RunSpec:
    run = preset("quickstart")
    return replace(run, run=replace(run.run, max_steps=10**6), checkpoint=Checkpoint(interval_steps=interval_steps))


def test_the_assumed_saves_are_those_of_the_benchmark() -> None:
    """538 MB of state are 44.8 million parameters with 12 bytes each."""
    rows = json.loads((ROOT / "bench" / "results" / "checkpoint.json").read_text(encoding="utf-8"))
    median_s = {row["what"]: row["median"] for row in rows}
    saves = assume_saves(preset("quickstart"), 538_000_000 // 12)
    assert saves.stall_s == pytest.approx(median_s["Checkpointer, all that the loop waits"], rel=0.01)
    assert saves.write_s == pytest.approx(median_s["Checkpointer, until the manifest"], rel=0.01)
    waiting = assume_saves(replace(preset("quickstart"), checkpoint=Checkpoint(async_save=False)), 538_000_000 // 12)
    assert waiting.stall_s == pytest.approx(median_s["dcp.save, the loop stands still"], rel=0.01)


def test_prime_rl_waits_for_its_saves() -> None:
    assert assume_saves(preset("rl-h100-80gb"), 10**9).stall_s > 10


def test_the_longest_interval_costs_one_percent() -> None:
    saves = Saves(12, 60)
    found = advise_saves(long_run(None), 9.0, 0.25, 600, saves, measured=True)
    best_s, longest = found.advice.interval_s, found.longest_steps
    assert compute_excess(longest * 9.0, best_s, saves, 0.25, 600) <= 0.01
    assert compute_excess((longest + 1) * 9.0, best_s, saves, 0.25, 600) > 0.01
    assert (found.interval_steps, found.excess, found.is_far) == (None, None, False)


@pytest.mark.parametrize(("interval_steps", "is_far"), [(64, False), (100, False), (1000, True), (1, True)])
def test_an_interval_that_is_far_from_the_best(interval_steps: int, is_far: bool) -> None:
    found = advise_saves(long_run(interval_steps), 9.0, 0.25, 600, Saves(12, 60), measured=True)
    assert found.is_far is is_far


def test_an_excess_in_words() -> None:
    assert describe_excess(0.071) == "7% more time"
    assert describe_excess(math.inf) == "a run without end"
