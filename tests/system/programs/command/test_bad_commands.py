"""Commands that cannot be supervised are refused or ended in plain words, and leave no process behind."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from tests.system.programs.command.commands import Supervised, list_marked, read_json
from tests.unit.cli.commands import prime_train


def run(folder: Path, *words: str) -> tuple[int, str]:
    done = prime_train("run", "--no-validate", *words, cwd=folder)
    return done.returncode, done.stderr


def has_four_parts(err: str) -> bool:
    return all(part in err for part in ("error: ", "what ", "why ", "fix "))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("no-such-program-here", "--x"), "there is no program no-such-program-here"),
        (("./train.py",), "./train.py may not be executed"),
        (("train.py",), "there is no program train.py"),
        ((sys.executable, "t.py", "--hub_token", "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"), "is a secret"),
        (("env", "MY_API_KEY=hf_abcdefgh", sys.executable, "t.py"), "is a secret"),
        (("bash", "-c", "export HUB_TOKEN=hf_abcdefgh; python t.py"), "is a secret"),
        ((sys.executable, "t.py", "+trainer.hub_token=hf_abcdefgh"), "is a secret"),
        ((sys.executable, "t.py", "-password", "Zq8vT1xWm4KpR7sLd2"), "is a secret"),
        ((sys.executable, "t.py", "--wandb-api-key=0123456789abcdef0123456789abcdef01234567"), "is a secret"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_is_written(
    tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    code, err = run(tmp_path, "--", *words)
    assert code == 2, err
    assert what in err
    assert has_four_parts(err)
    assert "hf_abc" not in err
    assert not (tmp_path / "runs").exists()


def test_a_config_and_a_command_are_refused_together(tmp_path: Path) -> None:
    command = '[run]\nname = "a"\nkind = "command"\n[command]\nargv = ["sleep", "1"]\n'
    (tmp_path / "run.toml").write_text(command)
    refused = (("quickstart", "--", "sleep", "1"), ("--",), ("--spot", "--", "sleep", "1"), ("run.toml", "--spot"))
    for arguments in refused:
        done = prime_train("run", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert has_four_parts(done.stderr), done.stderr


@pytest.mark.parametrize(
    "given",
    [
        "HF_TOKEN=abcdefgh12345678",
        "OPTIONS=--api-key=abcdefgh12345678",
        "OPTIONS=client(secret_key='abcdefgh12345678')",
        "LOGIN=hf_abcdefgh12345678abcdefgh12345678",
        "HEADERS=Authorization: Bearer abcdefgh12345678",
    ],
)
def test_a_secret_in_the_environment_of_the_file_is_refused(tmp_path: Path, given: str) -> None:
    text = f'[run]\nname = "a"\nkind = "command"\n[command]\nargv = ["sleep", "1"]\nenv = ["{given}"]\n'
    (tmp_path / "run.toml").write_text(text)
    code, err = run(tmp_path, "run.toml")
    assert code in (1, 2)
    assert "secret" in err
    assert "abcdefgh12345678" not in err


def test_an_end_without_a_step_is_not_claimed_to_be_a_finish(tmp_path: Path) -> None:
    code, err = run(tmp_path, "--", sys.executable, "-c", "pass")
    assert code == 0, err
    assert "exit 0; whether it finished is not known" in err


def test_a_described_trainer_that_ends_at_once_has_failed(tmp_path: Path) -> None:
    text = "from transformers import Trainer\n"
    (tmp_path / "train.py").write_text(f"if False:\n    {text}")
    code, err = run(tmp_path, "--", sys.executable, "train.py")
    assert code == 5, err
    assert "it exited with 0 without a step" in err


FORK = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
# Twice, without a parent, a file or the mark of the run in its environment.
DAEMON = """\
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 256)
os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
"""


@pytest.mark.parametrize("daemon", [FORK, DAEMON])
def test_a_command_that_goes_into_the_background_is_ended(tmp_path: Path, daemon: str) -> None:
    (tmp_path / "daemon.py").write_text(daemon)
    supervised = Supervised(tmp_path, "--", sys.executable, "daemon.py")
    try:
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert code == 5, err
    assert "left processes in the background" in err
    assert list_marked(supervised.run_dir) == []


def test_long_lines_and_progress_bars_are_read(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for step in range(1, 6):\n"
        "    sys.stdout.write('x' * 10_000_000 + '\\r\\x1b[32mstep ' + str(step) + '\\x1b[0m of 5 loss 0.5\\r')\n"
        "sys.stdout.write('\\n')\n"
    )
    (tmp_path / "long.py").write_text(script)
    code, err = run(
        tmp_path,
        "--set",
        "command.progress.log='''^step (?P<step>\\d+) of (?P<total>\\d+) loss (?P<loss>\\S+)'''",
        "--run-name",
        "long",
        "--",
        sys.executable,
        "long.py",
    )
    assert code == 0, err
    status = read_json(tmp_path, "status", "long")
    assert (status["state"], status["step"], status["max_steps"], status["loss"]) == ("finished", 5, 5, 0.5)


def test_a_trainer_that_prints_only_to_a_terminal_and_closes_it(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "if sys.stdout.isatty():\n"
        "    print('step 3 loss 1.0', flush=True)\n"
        "for number in (0, 1, 2):\n"
        "    os.close(number)\n"
        "time.sleep(2)\n"
        "os._exit(7)\n"
    )
    (tmp_path / "shy.py").write_text(script)
    options = ("--set", "command.terminal=true", "--set", "command.exits.failed=[7]", "--run-name", "shy")
    code, err = run(tmp_path, *options, "--", sys.executable, "shy.py")
    assert code == 5, err
    assert "it exited with 7" in err
    assert "step 3 loss 1.0" in prime_train("logs", "shy", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["out", "link/../out", "link"])
def test_two_runs_in_one_folder_of_checkpoints(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        options = ("--set", f'command.checkpoints.dir="{name}"', "--run-name", "second")
        code, err = run(tmp_path, *options, "--", sys.executable, "-c", "pass")
    finally:
        os.close(descriptor)
    assert code == 2
    assert "another supervised run writes into the same folder" in err
    assert has_four_parts(err)
