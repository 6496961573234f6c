"""A training on a real Slurm that meets its time limit three times."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from tests.system.away.slurm_cluster import cluster
from tests.system.away.slurm_runs import hook, prime_train, run_dir_of, submit
from tests.unit.cli import small

pytestmark = [pytest.mark.timeout(1200)]


def _weights(run_dir: RunDir) -> str:
    files = sorted(run_dir.final.glob("*.safetensors"))
    assert files
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_three_time_limits_leave_the_weights_of_an_uninterrupted_run(tmp_path: Path) -> None:
    """Slurm sends its signal 75 s before the limit of 2 min, up to 30 s early. Each trainer waits for it."""
    interrupted, straight, waits = (tmp_path / name for name in ("interrupted", "straight", "waits"))
    for folder in (interrupted, straight):
        folder.mkdir()
        small.write(folder)
    waits.mkdir()
    settings = ("--set", "run.max_steps=40", "--set", "checkpoint.final=hf", "--set", "prime_train.stop_grace_s=45")
    bound = ("--set", "prime_train.restart.max_fruitless_attempts=8")  # signals that come before the first step
    (tmp_path / "slurm").mkdir()
    with cluster(tmp_path / "slurm") as slurm:
        job_id = submit(slurm, interrupted, *settings, *bound, "--time-limit", "2", variables=hook(waits, 6))
        assert prime_train(slurm, straight, "run", "run.toml", *settings).returncode == 0
        ended = slurm.wait(job_id, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", limit_s=900)
    run_dir = run_dir_of(interrupted)
    output = (run_dir.slurm / f"job-{job_id}.log").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert len(list(waits.iterdir())) == 3
    assert int(ended["Restarts"]) >= 3
    assert output.count("is requeued: the time limit is near") == int(ended["Restarts"])
    assert _weights(run_dir) == _weights(run_dir_of(straight))
    steps = [json.loads(line)["step"] for line in run_dir.metrics.read_text().splitlines()]
    assert steps == list(range(1, 41))
