"""A command goes on from its newest whole checkpoint, or where it finds itself, and ends at its last step alone."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from tests.system.programs.command.commands import TORCHRUN, Supervised, kill_rank, list_marked, read_json, write_config
from tests.unit.cli.commands import prime_train, wait_until

HERE = Path(__file__).parent
STEPS = 40


def test_a_dcp_script_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    shutil.copy(HERE / "dcp.py", tmp_path)
    config = write_config(
        "dcp",
        (TORCHRUN, "--nproc-per-node", "2", "dcp.py", str(STEPS), "5"),
        run={"max_steps": STEPS},
        command={"processes": 2},
        command_checkpoints={"dir": "out", "layout": "dcp"},
        command_resume={"how": "argument", "template": "--resume {path}", "aside": "rename"},
        prime_train_restart={"backoff_s": 0.1},
    )
    (tmp_path / "run.toml").write_text(config)
    supervised = Supervised(tmp_path, "run.toml")
    try:
        supervised.await_text("step 13 ")
        torn = next((tmp_path / "out" / "step_10").glob("*.distcp"))
        os.truncate(torn, 16)
        kill_rank(tmp_path, 1)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    assert "attempt 2 resumes from step 5" in err
    assert "is not whole" in err
    assert list((tmp_path / "out" / "incomplete-0").iterdir())
    status = read_json(tmp_path, "status", "dcp")
    assert (status["state"], status["step"], status["restarts"]) == ("finished", STEPS, 1)
    log = supervised.run_dir.log(2, "trainer").read_text()
    assert f"sum {sum(range(STEPS + 1))}" in log  # as an uninterrupted run has it
    listed = read_json(tmp_path, "ckpt", "list", "dcp")
    assert listed["resume_step"] == STEPS
    assert prime_train("ckpt", "verify", "dcp", cwd=tmp_path).returncode == 0
    assert list_marked(supervised.run_dir) == []


def test_a_foreign_sigterm_with_exit_code_0_is_no_finish(tmp_path: Path) -> None:
    shutil.copy(HERE / "plain.py", tmp_path)
    pattern = r"'''^it (?P<step>\d+) of (?P<total>\d+): loss (?P<loss>\S+)'''"
    options = ("--run-name", "plain", "--set", f"command.progress.log={pattern}")
    supervised = Supervised(tmp_path, *options, "--", sys.executable, "plain.py", str(STEPS))
    try:
        supervised.await_text("it 5 of")
        os.kill(int((tmp_path / "plain.pid").read_text()), signal.SIGTERM)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 0, err
    assert "it exited with 0 at step" in err
    status = read_json(tmp_path, "status", "plain")
    assert (status["state"], status["step"], status["max_steps"], status["restarts"]) == ("finished", STEPS, STEPS, 1)


def test_a_killed_supervisor_leaves_no_process_and_the_same_command_goes_on(tmp_path: Path) -> None:
    shutil.copy(HERE / "plain.py", tmp_path)
    words = ("--", sys.executable, "plain.py", str(STEPS))
    first = Supervised(tmp_path, *words)
    first.await_text("it 5 of")
    first.kill()
    run_dir = first.run_dir
    wait_until(lambda: list_marked(run_dir) == [])
    again = prime_train("run", "--no-validate", *words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "attempt 2" in again.stderr
    assert f"it {STEPS} of" in run_dir.log(2, "trainer").read_text()
