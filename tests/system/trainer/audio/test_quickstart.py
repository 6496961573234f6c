"""The preset as a user starts it: the run is killed with its supervisor, continued, and shown with ten spectrograms."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from prime_train.views.run.status import fold_events
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, wait_until

PRESET = Path(__file__).parents[4] / "presets" / "audio-quickstart.toml"
# As the preset has it, but for the number of clips and steps.
SMALLER = {
    "run.max_steps": 16,
    "data.sources.0.count": 60,
    "batch.micro_batch": 8,
    "checkpoint.interval_steps": 4,
    "eval.interval_steps": 8,
    "schedule.decay_steps": 8,
}
WORDS = ("run", str(PRESET), *(word for key, value in SMALLER.items() for word in ("--set", f"{key}={value}")))


@pytest.mark.timeout(600)  # two starts of a supervisor and a trainer, on a loaded machine
def test_the_preset_is_killed_continued_and_reported(tmp_path: Path) -> None:
    cache = {"PRIME_TRAIN_CACHE": str(tmp_path / "cache")}
    run_dir = RunDir(tmp_path / "runs" / "killed")
    words = [str(PROGRAM), *WORDS, "--run-name", "killed"]
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(words, cwd=tmp_path, env=clean_environment() | cache, stdout=log, stderr=log)
    wait_until(lambda: first.poll() is not None or layout.newest_complete(run_dir.checkpoints) is not None)
    assert first.poll() is None, (tmp_path / "first.log").read_text()
    # The trainer and its workers before the supervisor, so that none of them is there to see the other end.
    everyone = [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]
    for process in everyone:
        process.kill()
    first.wait(60)
    psutil.wait_procs(everyone, 60)
    done = prime_train(*WORDS, "--run-name", "killed", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    assert [attempt.resume_step >= 4 for attempt in fold_events(run_dir).attempts] == [False, True]
    lines = [json.loads(line) for line in run_dir.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 17))
    report = run_dir.report.read_text()
    for shown in ("loss", "measured", "spectrograms"):
        assert f"plots/{shown}.png" in report
        assert (run_dir.plots / f"{shown}.png").read_bytes().startswith(b"\x89PNG")
    assert "| probe | accuracy |" in report
    assert "supervised" in report
