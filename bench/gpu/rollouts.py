"""Reinforcement learning with the local engine: a step on the GPU, and the same with the GPU hidden from the run."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from gpu.bench import Bench
from gpu.runs import Trained, train

IMITATED_STEPS, FILLED_STEPS = 5, 2  # before the first rollouts, and until the steps overlap with them
STEPS = 30
SETTINGS: dict[str, object] = {
    "run.max_steps": STEPS,
    "rl.warmup_steps": IMITATED_STEPS,
    "eval.interval_steps": 1000,
    "eval.tasks": 8,
    "checkpoint.interval_steps": 1000,
}
TINY_SETTINGS = SETTINGS | {
    "run.max_steps": 10,
    "model.layers": 1,
    "model.hidden_size": 32,
    "batch.micro_batch": 16,
    "batch.global_batch": 16,
    "rl.group_size": 4,
    "rl.concurrency": 16,
}


def measure(bench: Bench) -> None:
    settings = TINY_SETTINGS if bench.tiny else SETTINGS
    step_ms: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for where, variables in (("GPU", {}), ("CPU", {"CUDA_VISIBLE_DEVICES": ""})):
            if where == "GPU" and not bench.on_gpu:
                continue
            with bench.case(where):
                run = train(Path(name), "rl-quickstart", where.lower(), settings, **variables)
                values = _describe(run)
                step_ms[where] = values["step_ms"]
                bench.emit(where, **values)
    if len(step_ms) == 2:
        bench.emit("GPU beside CPU", step_time_ratio=round(step_ms["GPU"] / step_ms["CPU"], 3))


def _describe(run: Trained) -> dict[str, Any]:
    lines = [line for line in run.steps if line["step"] > IMITATED_STEPS + FILLED_STEPS]
    mismatches = [line["mismatch_kl"] for line in lines if line["mismatch_kl"] is not None]
    tokens = sum(line["answer_tokens"] * line["rollouts"] for line in lines)
    return {
        "seconds": run.seconds,
        "steps": len(lines),
        "step_ms": round(1e3 * statistics.median(line["step_s"] for line in lines), 3),
        "rollouts_ms": round(1e3 * statistics.median(line["rollouts_s"] for line in lines), 3),
        "answer_tokens_per_s": round(tokens / sum(line["step_s"] for line in lines), 1),
        "mismatch_kl": max(mismatches, default=None),
        "reward": lines[-1]["reward"],
    }
