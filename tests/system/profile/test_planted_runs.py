"""Real runs with a planted bottleneck: the class, the first recommendation, and the planted seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server

ROOT = Path(__file__).parents[3]
START = (
    "import prime_train.programs.bundled as program; program._TRAINER = 'tests.system.profile.planted_trainer';"
    "from prime_train.cli.entry import main; main()"
)
STEPS, WARM_UP = 4, 2
PLANTED_S = 0.8
TIMES = "times.txt"
ROLLOUTS = 8  # of a step of RL_CONFIG, one call of the engine each
CONFIG = """
[run]
name = "planted"
max_steps = 1000

[model]
layers = 2
hidden_size = 64
heads = 2

[data]
ctx_tokens = 64
pack_buffer_docs = 64
loader_workers = 1

[[data.sources]]
kind = "files"
path = "texts"

[tokenizer]
vocab_size = 300

[batch]
micro_batch = 4

[checkpoint]
interval_steps = 1000

[eval]
interval_steps = 1000
"""
RL_CONFIG = """
[run]
name = "planted"
kind = "rl"
max_steps = 1000

[model]
layers = 2
hidden_size = 64
heads = 2

[data]
ctx_tokens = 384

[[tasks]]
kind = "calculator"
max_turns = 2

[tokenizer]
vocab_size = 300

[rl]
group_size = 4
answer_tokens = 16
concurrency = 8
max_behind_steps = 0

[batch]
micro_batch = 4
global_batch = 8

[checkpoint]
interval_steps = 1000

[eval]
interval_steps = 1000
"""


def write_config(folder: Path, text: str) -> Path:
    texts = folder / "texts"
    texts.mkdir()
    for number in range(60):
        (texts / f"{number}.txt").write_text(f"number {number} and some words that follow it\n" * 40, encoding="utf-8")
    config = folder / "run.toml"
    config.write_text(text, encoding="utf-8")
    return config


def profile(folder: Path, planted: str, *options: str, text: str = CONFIG) -> dict[str, Any]:
    """The document of `profile --json` on the planted run."""
    config = write_config(folder, text)
    command = [sys.executable, "-c", START, "profile", config.name, "--steps", str(STEPS), "--json", *options]
    forked = fork_server.variables()
    paths = os.pathsep.join((forked["PYTHONPATH"], str(ROOT / "src"), str(ROOT)))
    environment = os.environ | forked | {"PLANT": planted, "PLANT_TIMES": str(folder / TIMES), "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def step_seconds(found: dict[str, Any], component: str) -> float:
    """Seconds of a component on the critical path of a step."""
    critical_s: float = next(one["critical_s"] for one in found["components"] if one["component"] == component)
    return critical_s / STEPS


def read_truth_s(folder: Path, calls: int = 1) -> float:
    """Seconds of the planted calls in a counted step, which has so many. On a busy machine they take longer than asked
    for."""
    calls_s = [float(line) for line in (folder / TIMES).read_text(encoding="utf-8").split()]
    counted_s = calls_s[WARM_UP * calls : (WARM_UP + STEPS) * calls]
    assert len(counted_s) == STEPS * calls
    return sum(counted_s) / STEPS


def first(found: dict[str, Any]) -> tuple[str, str]:
    return found["diagnosis"]["class"], found["recommendations"][0]["setting"].partition(" = ")[0]


@pytest.mark.spread
def test_a_slow_loader(tmp_path: Path) -> None:
    found = profile(tmp_path, f"loader:{PLANTED_S}")
    assert first(found) == ("input-bound", "data.loader_workers")
    assert read_truth_s(tmp_path) >= PLANTED_S
    assert step_seconds(found, "data") == pytest.approx(read_truth_s(tmp_path), rel=0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["run.toml", "texts", TIMES])


@pytest.mark.spread
def test_a_checkpoint_every_step(tmp_path: Path) -> None:
    settings = ("--set", "checkpoint.interval_steps=1", "--set", "checkpoint.async=false")
    found = profile(tmp_path, f"checkpoint:{PLANTED_S}", *settings)
    assert first(found) == ("checkpoint-bound", "checkpoint.interval_steps")
    assert read_truth_s(tmp_path) >= PLANTED_S
    assert step_seconds(found, "checkpoint") == pytest.approx(read_truth_s(tmp_path), rel=0.1)


@pytest.mark.spread
def test_a_slow_all_reduce_between_two_processes(tmp_path: Path) -> None:
    found = profile(tmp_path, f"all-reduce:{PLANTED_S}", "--set", "parallel.processes=2")
    assert first(found) == ("communication-bound", "batch.global_batch")
    assert step_seconds(found, "communication") == pytest.approx(PLANTED_S, rel=0.1)


@pytest.mark.spread
def test_a_large_model_with_tiny_batches(tmp_path: Path) -> None:
    sizes = ("model.hidden_size=768", "model.layers=4", "data.ctx_tokens=8", "batch.micro_batch=1")
    found = profile(tmp_path, "large-model", *(word for size in sizes for word in ("--set", size)))
    if found["diagnosis"]["class"] == "host-starved":  # other programs have the cores, and the profile tells it
        evidence = " ".join(found["diagnosis"]["evidence"])
        assert "threads wanted to run" in evidence
        pytest.skip(f"this machine has no core to spare: {evidence}")
    assert first(found) == ("train-bound", "batch.micro_batch")
    computed_s = step_seconds(found, "forward") + step_seconds(found, "backward")
    assert computed_s == pytest.approx(read_truth_s(tmp_path), rel=0.1)
    assert found["recommendations"][0]["gain"] > 1.5


@pytest.mark.spread
def test_a_tool_that_sleeps(tmp_path: Path) -> None:
    text = RL_CONFIG.replace("max_turns = 2", f"max_turns = 2\narguments = {{ tool_delay_s = {PLANTED_S} }}")
    found = profile(tmp_path, "tool-calls", text=text)
    assert found["diagnosis"]["class"] == "latency-bound"
    assert found["recommendations"][0]["text"].startswith("tool: 0.8 s a call at 2.0 calls a rollout")
    assert step_seconds(found, "tool") == pytest.approx(2 * PLANTED_S, rel=0.1)


@pytest.mark.spread
def test_a_starved_engine(tmp_path: Path) -> None:
    settings = ("--set", "rl.concurrency=1", "--set", "rl.answer_tokens=64")
    text = RL_CONFIG.replace("calculator", "reverse-text")
    found = profile(tmp_path, "starved-engine", *settings, text=text)
    assert first(found) == ("decode-bound", "rl.concurrency")
    answered_s = step_seconds(found, "prefill") + step_seconds(found, "decode")
    assert answered_s == pytest.approx(read_truth_s(tmp_path, calls=ROLLOUTS), rel=0.1)
    assert found["answers_decoded_at_once"] == pytest.approx(1.0)
