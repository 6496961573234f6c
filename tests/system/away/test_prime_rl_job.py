"""The script of a prime-rl job, with a stand-in of prime-rl's launcher: all that it writes is in the bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.away.sky.task import write_script
from prime_train.config import detect
from prime_train.events import LaunchAsked, read
from tests.fakes.prime_rl_launcher import behaviour, install
from tests.fakes.prime_rl_launcher.config import config
from tests.system.away.stand_in_cloud import SOURCE

_MAIN = "from prime_train.cli.entry import main; main()"


def _run_on_a_machine(folder: Path, bucket: Path, script: str, variables: dict[str, str]) -> int:
    """Run the script on a machine with nothing but the bucket. --no-validate, because this machine has no GPU."""
    programs = folder / "prime-train-env" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", '"$@"'), ("prime-train", f"-c '{_MAIN}' \"$@\" --no-validate")):
        (programs / name).write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    environment = {
        "HOME": str(folder),
        "PATH": os.defpath,
        "PYTHONPATH": str(SOURCE),
        "PRIME_TRAIN_BUCKET": str(bucket),
        "PRIME_TRAIN_JOB": "words",
        **variables,
    }
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=folder, timeout=240, check=False)
    return done.returncode


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_the_second_machine_finds_the_run_of_the_first(tmp_path: Path, kind: str) -> None:
    install(tmp_path / "env")
    text = config(kind, tmp_path / "env" / "bin" / "python")
    run = detect.read(text, "words.toml").run
    assert run is not None
    script = write_script(run, text, (), mounts=True).run
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for machine in ("first", "second"):
        variables = {name: str(value) for name, value in behaviour(tmp_path / f"starts-{machine}").items()}
        assert _run_on_a_machine(tmp_path / machine, bucket, script, variables) == 0
    assert sorted(path.name for path in bucket.iterdir()) == ["outputs", "runs"]
    launches = [record for record in read(bucket / "runs/words/events") if isinstance(record.event, LaunchAsked)]
    assert len(launches) == 1  # the second machine finds a finished run
    assert not list((tmp_path / "second").rglob("step_*"))
