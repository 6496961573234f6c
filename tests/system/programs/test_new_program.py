"""A program that prime-train does not know is added by one folder in programs/ and its name in `spec.ProgramName`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import prime_train
from prime_train.core import installation
from tests.unit.cli.commands import clean_environment, wait_until

MAX_STEPS = 40
CONFIG = f"""\
[run]
name = "titan"
max_steps = {MAX_STEPS}
program = "torchtitan"
[[data.sources]]
kind = "python-stdlib"
[checkpoint]
interval_steps = 5
[prime_train.restart]
backoff_s = 0.1
"""
_NAMES = '"prime_rl"]'  # the end of the line in spec/run.py that lists the programs


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the folder and the line that the program needs."""
    copy = tmp_path_factory.mktemp("src")
    shutil.copytree(Path(prime_train.__file__).parent, copy / "prime_train", ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copytree(installation.shipped(), copy / "prime_train" / "_shipped" / "registry")
    shutil.copytree(Path(__file__).with_name("torchtitan"), copy / "prime_train" / "programs" / "torchtitan")
    spec = copy / "prime_train" / "spec" / "run.py"
    text = spec.read_text(encoding="utf-8")
    assert text.count(_NAMES) == 1
    spec.write_text(text.replace(_NAMES, '"prime_rl", "torchtitan"]'), encoding="utf-8")
    return copy


class Commands:
    """prime-train with the program, in a folder with its config."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.folder = folder
        self._environment = clean_environment() | {"PYTHONPATH": str(package)}
        (folder / "run.toml").write_text(CONFIG)

    def begin(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        program = "from prime_train.cli.entry import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=self.folder,
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.begin(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def read(self, *arguments: str) -> Any:
        """The document that a command gives with --json."""
        done = self.end(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def test_it_is_launched_watched_killed_resumed_listed_pruned_and_reported(package: Path, tmp_path: Path) -> None:
    command = Commands(package, tmp_path)
    saved = tmp_path / "runs" / "titan" / "outputs" / "checkpoint"
    planned = command.end("run", "run.toml", "--dry-run")
    assert "train.py" in planned.stdout, planned.stderr

    first = command.begin("run", "run.toml", "--no-validate", DIE_AT="12")
    try:
        wait_until(lambda: (saved / "step-20").exists() or first.poll() is not None)
        assert first.poll() is None, first.communicate()
    finally:
        first.kill()  # the supervisor: its trainer ends with it
        first.communicate()
    died = command.read("status", "titan")
    assert (died["state"], died["restarts"]) == ("died", 1)
    assert "SIGKILL" in died["cause"]["line"]
    assert died["checkpoints"]["newest_complete"] >= 20

    stopped = command.begin("run", "run.toml", "--no-validate")
    wait_until(lambda: (saved / "step-30").exists() or stopped.poll() is not None)
    os.kill(stopped.pid, signal.SIGINT)
    assert stopped.communicate(timeout=120) is not None
    assert stopped.returncode == 75

    last = command.end("run", "run.toml", "--no-validate")
    assert last.returncode == 0, last.stderr
    assert f"step {MAX_STEPS}" in last.stdout
    validated = command.end("validate", "run.toml", "--json")
    assert "run_folder" not in [skip["code"] for skip in json.loads(validated.stdout).get("skipped", [])]

    (saved / f"step-{MAX_STEPS}" / ".metadata").write_bytes(b"")
    listed = command.read("ckpt", "list", "titan")
    assert listed["resume_step"] == MAX_STEPS - 5
    assert listed["checkpoints"][0]["problem"] == "no .metadata: the save did not finish"
    assert command.read("status", "titan")["checkpoints"]["newest_complete"] == MAX_STEPS - 5
    assert command.end("ckpt", "verify", "titan").returncode == 0

    pruned = command.read("ckpt", "prune", "titan", "--keep-last", "1")
    assert {item["step"] for item in pruned["deleted"]} >= set(range(5, MAX_STEPS - 5, 5))
    assert (saved / f"step-{MAX_STEPS - 5}").exists()
    written = command.end("report", "titan")
    assert written.returncode == 0, written.stderr
    assert "**finished**" in Path(written.stdout.strip()).read_text()
    assert "Training completed" in command.end("logs", "titan").stdout


@pytest.mark.parametrize("program", ["bundled", "vllm", "prime_rl"])
def test_a_program_that_the_file_is_not_for_is_refused_in_plain_words(
    package: Path, tmp_path: Path, program: str
) -> None:
    command = Commands(package, tmp_path)
    text = CONFIG.replace("torchtitan", program)
    if program == "bundled":
        text = '[run]\nname = "a"\nkind = "serve"\nprogram = "bundled"\n[inference]\nmodel = "m"\n'
    (tmp_path / "run.toml").write_text(text)
    refused = command.end("run", "run.toml", "--no-validate")
    assert refused.returncode == 2, refused.stderr
    assert f'run.program = "{program}"' in refused.stderr
    assert not (tmp_path / "runs").exists()
