"""A run under supervision, the same run killed once and resumed, and what the GPU watch sees meanwhile."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import record

from gpu.bench import Bench
from gpu.runs import Trained, show_status, train
from prime_train.events import LaunchAsked, TrainerStarted, read
from prime_train.supervise.watches.gpu import samples as gpu_samples

# A kill that waits for an event of progress comes up to half a second late, and a step takes some milliseconds. A save
# waits for the one before, so the checkpoint before the last one is complete when the kill comes.
SETTINGS: dict[str, object] = {
    "run.max_steps": 400,
    "checkpoint.interval_steps": 50,
    "eval.interval_steps": 200,
    "eval.batches": 2,
    "eval.prompts": [],
}
KILL_STEP = 180
TINY_SETTINGS = SETTINGS | {
    "run.max_steps": 300,
    "checkpoint.interval_steps": 10,
    "eval.interval_steps": 150,
    "model.layers": 1,
    "model.hidden_size": 64,
    "tokenizer.vocab_size": 300,
    "data.ctx_tokens": 64,
}
TINY_KILL_STEP = 60
_SAMPLE_S = 0.5


def measure(bench: Bench) -> None:
    settings, kill_step = (TINY_SETTINGS, TINY_KILL_STEP) if bench.tiny else (SETTINGS, KILL_STEP)
    plain: Trained | None = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with bench.case("run"):
            with _watched(folder) as samples:
                plain = train(folder, "quickstart", "plain", settings)
            bench.emit("run", **_describe(plain))
            bench.emit("GPU watch", **_summarise(samples.read_text(encoding="utf-8")))
        with bench.case("killed and resumed"):
            assert plain is not None, "there is no run to compare with"
            with _killed(folder, "killed", kill_step):
                killed = train(folder, "quickstart", "killed", settings)
            bench.emit("killed and resumed", **_compare(plain, killed))


def _describe(run: Trained) -> dict[str, Any]:
    started = [one.event for one in read(run.run_dir.events) if isinstance(one.event, TrainerStarted)]
    alarms = [alarm for alarm in show_status(run.run_dir)["alarms"] if alarm["watch"] == "gpu"]
    return {
        "seconds": run.seconds,
        "steps": len(run.steps),
        "loss": run.steps[-1]["loss"],
        "step_ms": round(1e3 * statistics.median(step["step_s"] for step in run.steps), 3),
        "stall_s": round(sum(step["checkpoint_s"] for step in run.steps), 4),
        "worst_stall_s": round(max(step["checkpoint_s"] for step in run.steps), 4),
        "trainer_device": started[-1].device,
        "precision": started[-1].precision,
        "gpu_alarms": [f"{alarm['name']}: {alarm['what']}" for alarm in alarms],
    }


def _compare(plain: Trained, killed: Trained) -> dict[str, Any]:
    """The largest difference of a step's loss. Backward passes on a GPU add up in any order, so it is not 0 there."""
    launches = [one.event for one in read(killed.run_dir.events) if isinstance(one.event, LaunchAsked)]
    losses = {step["step"]: step["loss"] for step in plain.steps}
    worst = max(abs(losses[step["step"]] - step["loss"]) for step in killed.steps)
    resumed = launches[-1].resume_step
    return {"attempts": len(launches), "resumed_at": resumed, "steps": len(killed.steps), "difference": worst}


@contextmanager
def _killed(folder: Path, name: str, step: int) -> Iterator[None]:
    """A process beside the run kills its trainer with SIGKILL at that step or soon after."""
    script = record.HERE.parent / "docs" / "kill_once.py"
    killer = subprocess.Popen([sys.executable, str(script), name, str(step)], cwd=folder)
    try:
        yield
    finally:
        killer.kill()
        killer.wait()


@contextmanager
def _watched(folder: Path) -> Iterator[Path]:
    """The file in which the program of the GPU watch writes its samples, beside the run that has its own."""
    path = folder / "samples.jsonl"
    script = Path(gpu_samples.__file__).with_name("gpu_program.py")
    program = [sys.executable, "-P", str(script), str(_SAMPLE_S), "/dev/kmsg", "-1", "runs/plain"]
    with open(path, "wb") as file:
        watch = subprocess.Popen(program, stdout=file, cwd=folder)
    try:
        yield path
    finally:
        watch.kill()
        watch.wait()


def _summarise(text: str) -> dict[str, Any]:
    """The highest values over the samples of all GPUs; None where no sample has one."""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    gpus = [gpu for line in lines for gpu in line.get("gpus", ())]
    used = [gpu["used_bytes"] for gpu in gpus if gpu.get("used_bytes") is not None]
    percent = [gpu["utilisation_percent"] for gpu in gpus if gpu.get("utilisation_percent") is not None]
    return {
        "samples": len(gpus),
        "utilisation_percent": max(percent, default=None),
        "used_gib": round(max(used) / 2**30, 3) if used else None,
        "processes": max((len(gpu.get("uses") or ()) for gpu in gpus), default=None),
        "faults": sorted({gpu["fault"] for gpu in gpus if gpu.get("fault")}),
        "answer": lines[0] if lines else None,
    }
