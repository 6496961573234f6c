"""Commands whose standard output is closed, full or without a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from tests.unit.cli import small

_MAIN = "from prime_train.cli.entry import main; main()"


def start(*arguments: str, cwd: Path, out: str, unbuffered: bool = False) -> subprocess.CompletedProcess[str]:
    """The command with its standard output at `out`, a redirection of the shell."""
    command = [sys.executable, *(["-u"] if unbuffered else []), "-c", _MAIN, *arguments]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {out}', "sh", *command],
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_result_that_cannot_be_printed_is_an_error_of_the_output(tmp_path: Path, unbuffered: bool) -> None:
    done = start("rule", "BAT001", cwd=tmp_path, out=">/dev/full", unbuffered=unbuffered)
    assert done.returncode == ExitCode.OUT_OF_REACH
    assert "error: standard output" in done.stderr
    assert "No space left" in done.stderr


def test_a_closed_standard_output_is_named_and_takes_no_file(tmp_path: Path) -> None:
    done = start("rule", "BAT001", cwd=tmp_path, out=">&-")
    assert done.returncode == 0
    assert done.stderr == "warning: standard output is closed, so the result of this command is not shown\n"


def test_a_full_standard_error_ends_nothing(tmp_path: Path) -> None:
    done = start("status", "nothing", cwd=tmp_path, out="2>/dev/full")
    assert done.returncode == ExitCode.USAGE


@pytest.mark.usefixtures("forked_trainers")
@pytest.mark.parametrize("out", [">&-", ">/dev/full", "pipe", "2>&- >&-"])
def test_a_run_ends_as_it_would_with_a_terminal(tmp_path: Path, out: str) -> None:
    small.write(tmp_path)
    ours, its = os.pipe()
    os.close(ours)  # a pipe without a reader
    stdout, out = (its, "") if out == "pipe" else (None, out)
    command = [sys.executable, "-c", _MAIN, "run", "run.toml", "--no-validate"]
    done = subprocess.run(["sh", "-c", f'exec "$@" {out}', "sh", *command], cwd=tmp_path, stdout=stdout, check=False)
    os.close(its)
    assert done.returncode == 0
    assert (tmp_path / "runs" / "small" / "report.md").exists()
