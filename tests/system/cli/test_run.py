import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, Follower
from tests.system.cli.test_bad_input import nothing_written
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, wait_until
from tests.unit.cli.small import CONFIG


def test_the_plan_is_shown_andnothing_written(here: Path) -> None:
    done = prime_train("run", "run.toml", "--dry-run", "--run-name", "other", "--set", "run.max_steps=7", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "to step 7, 64 tokens each" in done.stdout
    assert f"{here}/runs/other (is made)" in done.stdout
    assert f"-m prime_train.trainer {here}/runs/other --attempt 1 --resume-step 0" in done.stdout
    assert "PYTHONFAULTHANDLER=1   # " in done.stdout
    nothing_written(here)


def test_the_plan_as_json_masks_what_the_text_masks(here: Path) -> None:
    done = prime_train("run", "run.toml", "--dry-run", "--json", cwd=here, HF_TOKEN="hf_" + "a1" * 17)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["run"], document["attempt"], document["resume_step"]) == ("small", 1, 0)
    (trainer,) = document["processes"]
    assert trainer["argv"][2:4] == ["prime_train.trainer", f"{here}/runs/small"]
    assert all(variable["reason"] for variable in trainer["environment"])
    assert "hf_a1" not in done.stdout
    nothing_written(here)


RECIPE = '[run]\nname = "tuned"\nmax_steps = 9\n[recipe]\nprogram = "axolotl"\nmodel_name = "Qwen/Qwen3-4B"\n'
SERVER = '[prime_train]\nprime_rl = "2026-08"\n[server]\nport = 8001\n[vllm]\nmax_model_len = 2048\n'


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--no-validate",)])
@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        (RECIPE, "describes a training by axolotl", "prime-train estimate other.toml"),
        (SERVER, "one part of a run of prime-rl 2026-08 (inference)", "in prime-rl: uv run inference @ other.toml,"),
    ],
)
def test_what_another_program_runs_is_refused(
    here: Path, text: str, what: str, fix: str, options: tuple[str, ...]
) -> None:
    (here / "other.toml").write_text(text)
    done = prime_train("run", "other.toml", *options, cwd=here)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: other.toml" in done.stderr
    assert what in done.stderr
    assert fix in " ".join(done.stderr.split())
    (here / "other.toml").unlink()
    nothing_written(here)


def test_of_notes_only_the_number_is_reported(here: Path) -> None:
    done = prime_train("run", "run.toml", "--dry-run", "--set", "eval.interval_steps=100", cwd=here)
    assert re.search(r"^\d notes?: prime-train validate run.toml$", done.stderr, re.MULTILINE)
    assert "note[" not in done.stderr


@pytest.mark.usefixtures("forked_trainers")
def test_one_command_trains_reports_and_the_same_command_finds_it_finished(here: Path) -> None:
    done = prime_train("run", "run.toml", cwd=here)
    assert done.returncode == 0, done.stderr
    run_dir = RunDir(here / "runs" / "small")
    for said in ("small finished: step 12 of 12", "held-out loss", "sample", "runs/small/plots/loss.png", "report.md"):
        assert said in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "attempt 1 starts from the beginning" in done.stderr
    assert run_dir.config.read_text() == CONFIG
    assert json.loads(run_dir.verdict.read_text())["summary"]["errors"] == 0
    assert "save_dir" in json.loads(run_dir.facts.read_text())
    assert "**finished**: step 12 of 12" in run_dir.report.read_text()

    again = prime_train("run", "run.toml", "--json", cwd=here)
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert (document["state"], document["step"], document["attempt"]) == ("finished", 12, 1)
    assert "small is finished: step 12 of 12" in again.stderr


@pytest.mark.usefixtures("forked_trainers")
def test_a_detached_run_goes_on_after_its_command_and_is_followed_and_stopped(here: Path) -> None:
    options = ("--no-validate", "--set", "run.max_steps=100000")
    done = prime_train("run", "--detach", *options, cwd=here)
    assert done.returncode == 0, done.stderr
    run_dir = RunDir(here / "runs" / "small")
    assert f"its output: {run_dir.supervisor_log}" in done.stderr
    try:
        again = prime_train("run", "--detach", *options, cwd=here)
        assert (again.returncode, "the run is held by" in again.stderr) == (2, True)
        events = Follower(run_dir.events)
        wait_until(lambda: any(isinstance(record.event, CheckpointSaved) for record in events.poll()))
    finally:
        stopped = prime_train("stop", "small", cwd=here)
    assert stopped.stdout.startswith("small stopped at step ")
    assert "run stopped" in run_dir.supervisor_log.read_text()


def test_a_detached_run_that_cannot_start_ends_with_its_own_code(here: Path) -> None:
    faulty = prime_train("run", "--detach", "--set", "run.max_steps='x'", cwd=here)
    assert (faulty.returncode, "run.max_steps" in faulty.stderr) == (1, True)
    nothing_written(here)
    refused = prime_train("run", "--detach", "--no-validate", "--resume", "7", cwd=here)
    assert (refused.returncode, "step 7 cannot be resumed from" in refused.stderr) == (2, True)
    called = [sys.executable, "-c", "from prime_train.cli.entry import main; main()"]
    options = ("run", "--detach", "--no-validate", "--resume", "7")
    environment = clean_environment()
    done = subprocess.run([*called, *options], cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "step 7 cannot be resumed from" in done.stderr) == (2, True)


@pytest.mark.usefixtures("forked_trainers")
def test_ctrl_c_ends_with_75_and_the_same_command_goes_on(here: Path) -> None:
    command = [
        str(PROGRAM),
        "run",
        "run.toml",
        "--set",
        "run.max_steps=100000",
        "--set",
        "checkpoint.interval_steps=10",
    ]
    process = subprocess.Popen(
        command, cwd=here, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        events = Follower(RunDir(here / "runs" / "small").events)
        wait_until(lambda: any(isinstance(record.event, CheckpointSaved) for record in events.poll()))
    finally:
        process.terminate()
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 75, told
    assert "small stopped: step " in shown
    assert "prime-train run run.toml --set run.max_steps=100000" in shown

    state = json.loads(prime_train("status", "small", "--json", cwd=here).stdout)
    reached = state["step"]
    assert state["checkpoints"]["newest_complete"] == reached
    done = prime_train(
        "run", "run.toml", "--set", f"run.max_steps={reached + 5}", "--set", "checkpoint.interval_steps=10", cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert f"attempt 2 resumes from step {reached}" in done.stderr
    assert f"small finished: step {reached + 5:,} of {reached + 5:,}" in done.stdout
