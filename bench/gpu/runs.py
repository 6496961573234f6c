"""Starts real runs under `prime-train run` for the steps that need the supervisor, and reads what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core.rundir import RunDir

# Not the script of that name, which may be that of another installation.
_PRIME_TRAIN = (sys.executable, "-P", "-c", "from prime_train.cli.entry import main; main()")


class Trained(NamedTuple):
    """A run that ended by itself. `steps` are the lines of its metrics."""

    run_dir: RunDir
    steps: list[dict[str, Any]]
    seconds: float


def train(folder: Path, preset: str, name: str, settings: Mapping[str, object], **variables: str) -> Trained:
    """Run a preset with other settings below `folder`. Raises RuntimeError with its last lines if it fails."""
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    cache = {"PRIME_TRAIN_CACHE": str(folder / "cache")}  # the runs of a step share a tokenizer, and nothing else
    began_s = time.monotonic()
    done = subprocess.run(
        [*_PRIME_TRAIN, "run", preset, "--run-name", name, *changes],
        cwd=folder,
        env=os.environ | cache | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"`prime-train run {preset}` ended with exit code {done.returncode}: {done.stdout[-1500:]}")
    run_dir = RunDir(folder / "runs" / name)
    lines = run_dir.metrics.read_text(encoding="utf-8").splitlines()
    return Trained(run_dir, [json.loads(line) for line in lines], round(time.monotonic() - began_s, 1))


def show_status(run_dir: RunDir) -> dict[str, Any]:
    """The document of `prime-train status --json`."""
    done = subprocess.run(
        [*_PRIME_TRAIN, "status", str(run_dir.path), "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document
