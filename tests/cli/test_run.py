import json
import subprocess
from pathlib import Path

import pytest

from prime_train.events import CheckpointSaved, Follower
from prime_train.rundir import RunDir
from tests.cli.commands import PROGRAM, clean_environment, prime_train, supervised, wait_until

CONFIG = """
[run]
name = "small"
max_steps = 12

[model]
layers = 1
hidden_size = 32
heads = 2

[data]
ctx_tokens = 32
loader_workers = 0

[[data.sources]]
kind = "files"
path = "text"

[tokenizer]
vocab_size = 300

[batch]
micro_batch = 2

[checkpoint]
interval_steps = 4

[eval]
interval_steps = 6
held_out_ratio = 0.25
batches = 1
prompts = ["the "]
sample_tokens = 4
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a config and a little text."""
    (tmp_path / "run.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "text").mkdir()
    for number in range(16):
        words = " ".join(f"the quick brown fox number {number} jumps over {other}" for other in range(60))
        (tmp_path / "text" / f"{number}.txt").write_text(words, encoding="utf-8")
    return tmp_path


def _refused(done: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def _nothing_written(here: Path) -> None:
    assert sorted(path.name for path in here.iterdir()) == ["run.toml", "text"]


@pytest.mark.parametrize("name", ["rnu.toml", "quickstrat"])
def test_a_config_that_is_no_file_and_no_preset(here: Path, name: str) -> None:
    _refused(prime_train("run", name, cwd=here), 2, f"error: {name}", "no such file", "quickstart", "fix")
    _nothing_written(here)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (("[run]", "[run"), "run.toml:2:"),
        (("layers", "layrs"), "layers"),
        (("max_steps = 12", 'max_steps = "12"'), "run.max_steps"),
        (('path = "text"', 'path = "nowhere"'), "data.sources.0.path"),
    ],
)
def test_a_config_with_errors_ends_with_1_and_leaves_nothing_behind(
    here: Path, broken: tuple[str, str], said: str
) -> None:
    (here / "run.toml").write_text(CONFIG.replace(*broken), encoding="utf-8")
    _refused(prime_train("run", "run.toml", cwd=here), 1, "error[", said, "what", "why", "fix")
    _nothing_written(here)


def test_the_plan_is_shown_and_nothing_written(here: Path) -> None:
    done = prime_train("run", "run.toml", "--dry-run", "--run-name", "other", "--set", "run.max_steps=7", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "to step 7, 64 tokens each" in done.stdout
    assert f"{here}/runs/other (is made)" in done.stdout
    assert f"-m prime_train.trainer {here}/runs/other --attempt 1 --resume-step 0" in done.stdout
    assert "PYTHONFAULTHANDLER=1   # " in done.stdout
    _nothing_written(here)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "run.max_steps"], "--set run.max_steps"),
        (["--set", "eval.prompts=two words"], "--set eval.prompts"),
        (["--resume", "newest"], "--resume newest"),
    ],
)
def test_a_wrong_option_is_named(here: Path, options: list[str], said: str) -> None:
    _refused(prime_train("run", "run.toml", *options, cwd=here), 2, said)
    _nothing_written(here)


def test_a_value_that_was_set_is_judged_like_one_of_the_file(here: Path) -> None:
    _refused(prime_train("run", "run.toml", "--set", "run.max_stepz=5", cwd=here), 1, "run.max_stepz", "max_steps")
    _nothing_written(here)


def test_a_directory_that_cannot_be_made_is_refused(here: Path) -> None:
    (here / "taken").write_text("a file")
    done = prime_train("run", "run.toml", "--set", "run.dir=taken", cwd=here)
    assert done.returncode in (1, 2)
    assert "taken" in done.stderr
    loud = prime_train("run", "run.toml", "--set", "run.dir=taken", "--no-validate", cwd=here)
    _refused(loud, 2, "warning: --no-validate: memory, disk, paths, model and data are not checked", "taken")
    assert (here / "taken").read_text() == "a file"


def test_a_second_run_of_the_same_name_is_refused(here: Path) -> None:
    with supervised(here, "small") as (run_dir, process):
        before = sorted(path.name for path in run_dir.path.iterdir())
        done = prime_train("run", "run.toml", cwd=here)
        _refused(done, 2, f"held by process {process.pid}", "prime-train stop small")
        assert sorted(path.name for path in run_dir.path.iterdir()) == before


@pytest.mark.slow
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


@pytest.mark.slow
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
