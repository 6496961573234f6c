"""What a run has besides its trainer works for a command as well: curves, W&B, alerts, Slurm, packing, profiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.system.away.slurm_commands import Commands
from tests.system.programs.command.commands import read_json, write_config
from tests.unit.checkpoints import written_saves as saves
from tests.unit.cli.commands import clean_environment, prime_train

HERE = Path(__file__).parent
PATTERN = r"^it (?P<step>\d+) of (?P<total>\d+): loss (?P<loss>\S+)"
STEPS = 12
FILE = write_config("plain", (sys.executable, "plain.py", str(STEPS)), command_progress={"log": PATTERN})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(HERE / "plain.py", tmp_path)
    (tmp_path / "run.toml").write_text(FILE)
    return tmp_path


@contextmanager
def webhook() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            """Keep the output of the tests clean."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from prime_train.cli.entry import main; main()", *words],
        cwd=folder,
        env=clean_environment() | variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_its_losses_are_in_the_metrics_and_the_report(folder: Path) -> None:
    done = run(folder, "run", "--no-validate", "run.toml")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "runs/plain/metrics.jsonl").read_text().splitlines()]
    assert lines[-1] == {"step": STEPS, "loss": pytest.approx(1 / STEPS, abs=1e-3)}
    report = read_json(folder, "report", "plain")
    assert json.dumps(report).count("loss")
    refused = prime_train("ckpt", "compress", "plain", cwd=folder)
    assert refused.returncode == 2
    assert all(part in refused.stderr for part in ("cannot be packed", "why ", "fix "))


def test_its_checkpoints_are_listed_verified_and_pruned(folder: Path) -> None:
    with (folder / "run.toml").open("a") as file:
        file.write('[command.checkpoints]\ndir = "out"\nlayout = "hf"\n')
    done = run(folder, "run", "--no-validate", "run.toml")
    assert done.returncode == 0, done.stderr
    nothing = prime_train("ckpt", "list", "plain", cwd=folder)
    assert "no folder named checkpoint-" in nothing.stderr
    assert str(folder / "out") in nothing.stderr
    for step in (10, 20, 30, 40):
        saves.write_whole(folder / "out", saves.SAVES["hf"](step))
    (folder / "out" / "checkpoint-40" / "model.safetensors").write_bytes(b"")
    assert read_json(folder, "ckpt", "list", "plain")["resume_step"] == 30
    assert prime_train("ckpt", "verify", "plain", cwd=folder).returncode == 0
    pruned = prime_train("ckpt", "prune", "plain", "--keep-last", "1", cwd=folder)
    assert pruned.returncode == 0, pruned.stderr
    left = sorted(path.name for path in (folder / "out").iterdir() if path.name.startswith("checkpoint-"))
    assert left == ["checkpoint-20", "checkpoint-30", "checkpoint-40"]


def test_its_steps_and_its_end_reach_wandb(folder: Path) -> None:
    pytest.importorskip("wandb")
    with (folder / "run.toml").open("a") as file:
        file.write('[prime_train.wandb]\nproject = "tests"\nmode = "offline"\n')
    done = run(folder, "run", "--no-validate", "run.toml")
    assert done.returncode == 0, done.stderr
    status = read_json(folder, "status", "plain")
    assert status["state"] == "finished"
    logs = list((folder / "runs/plain").rglob("run-*.wandb"))
    assert logs, done.stderr
    assert b"train/loss" in logs[0].read_bytes()


def test_a_failure_is_sent_as_an_alert(folder: Path) -> None:
    (folder / "plain.py").write_text("raise SystemExit('no data in /nowhere')\n")
    with (folder / "run.toml").open("a") as file:
        file.write('[prime_train.alerts]\nwebhook_env = "HOOK"\n[prime_train.restart]\nbackoff_s = 0.1\n')
    with webhook() as (url, got):
        done = run(folder, "run", "--no-validate", "run.toml", HOOK=url)
    assert done.returncode in (5, 6), done.stderr
    assert got
    assert "plain" in json.dumps(got)


def test_a_job_of_slurm_supervises_the_command(folder: Path) -> None:
    slurm = Commands(folder / "bin")
    path = f"{slurm.folder}{os.pathsep}{os.environ['PATH']}"
    slurm.answer(sbatch=[("12\n", "", 0)])
    words = ("--set", f"command.progress.log='''{PATTERN}'''", "--", sys.executable, "plain.py", str(STEPS))
    options = ("--run-name", "job", "--slurm", "--sbatch", "gres=none")
    submitted = run(folder, "run", *options, *words, PATH=path)
    assert submitted.returncode == 0, submitted.stderr
    script = folder / "runs/job/slurm/job.sh"
    done = subprocess.run(
        ["bash", script],
        cwd=folder,
        env=clean_environment() | {"PATH": path, "SLURM_JOB_ID": "12"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status = read_json(folder, "status", "job")
    assert (status["state"], status["step"]) == ("finished", STEPS)


def test_its_spans_are_profiled_and_a_profile_of_its_config_starts_nothing(folder: Path) -> None:
    refused = run(folder, "profile", "run.toml")
    assert refused.returncode == 2
    assert all(part in refused.stderr for part in ("error: ", "what ", "why ", "fix "))
    assert "plain.py" in refused.stderr
    assert not (folder / "plain.pid").exists()
    (folder / "plain.py").write_text(
        "import time\nfrom prime_train.profile_script import span, step\n"
        "for number in range(12):\n"
        "    with step(), span('data'):\n"
        "        time.sleep(0.02); print(f'it {number + 1} of 12: loss 1.0')\n"
    )
    spans = folder / "spans.jsonl"
    done = run(folder, "run", "--no-validate", "run.toml", PRIME_TRAIN_SPANS=str(spans))
    assert done.returncode == 0, done.stderr
    assert str(spans) in " ".join(refused.stderr.split())  # the file that the refusal names
    found = read_json(folder, "profile", str(spans), "--steps", "8")
    assert (found["steps"], found["diagnosis"]["class"]) == (8, "input-bound")
