"""What another user owns, and what may only be read, ends in a message of four parts, never as a bug."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.rules.explain import BASE
from tests.unit.cli.commands import clean_environment
from tests.unit.views.written_runs import WHOLE_LIFE, write_metrics, write_run

_PRCTL = ctypes.CDLL(None, use_errno=True).prctl
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose subfolders may be entered again at the end."""
    yield tmp_path
    for path in (*tmp_path.glob("*"), *tmp_path.glob("runs/*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def _drop_privileges() -> None:
    """After exec, file modes count for root too. Source: capabilities(7), PR_CAPBSET_DROP of prctl(2)."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        _PRCTL(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _run_as_another(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from prime_train.cli.entry import main; main()", *arguments],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=_drop_privileges,
        check=False,
    )


def _write(folder: Path) -> RunDir:
    run_dir = write_run(folder / "runs" / "nano", WHOLE_LIFE)
    write_metrics(run_dir, 20)
    return run_dir


def _has_four_parts(text: str) -> bool:
    return text.startswith("error:") and all(f"  {part}" in text for part in ("what", "why", "fix"))


def test_a_run_of_another_user_is_named(folder: Path) -> None:
    run_dir = _write(folder)
    run_dir.path.chmod(0o000)
    for command in (
        ["report", "nano"],
        ["logs", "nano"],
        ["ckpt", "list", "nano"],
        ["status", "nano"],
        ["compare", "nano"],
    ):
        ended = _run_as_another(*command, cwd=folder)
        assert "bug in prime-train" not in ended.stderr, ended.stderr
        assert ended.returncode in (2, 4), (command, ended.stderr)
        assert _has_four_parts(ended.stderr), (command, ended.stderr)
        assert str(run_dir.path) in ended.stderr


@pytest.mark.parametrize("closed", ["runs", "runs/nano", "runs/nano/config.toml"])
def test_the_configs_of_a_run_of_another_user_are_refused(folder: Path, closed: str) -> None:
    _write(folder).config.write_text(BASE)
    (folder / "mine.toml").write_text(BASE)
    (folder / closed).chmod(0o000)
    for command in (
        ["show", "nano"],
        ["show", "runs/nano", "--resolved"],
        ["diff", "mine.toml", "nano@1"],
        ["history", "nano"],
        ["restore", "nano", "1", "back.toml"],
    ):
        ended = _run_as_another("config", *command, cwd=folder)
        if (command[0], closed) == ("history", "runs/nano/config.toml"):
            assert (ended.returncode, "1, 2" in ended.stdout) == (0, True)  # the events say which attempts had it
            continue
        assert (ended.returncode, ended.stdout) == (4, ""), (command, ended.stderr)
        assert _has_four_parts(ended.stderr), (command, ended.stderr)
        assert "ls -l" in ended.stderr, (command, ended.stderr)
        assert "runs/runs" not in ended.stderr
        assert "runs/nano" in ended.stderr.splitlines()[0]
    assert not (folder / "back.toml").exists()


def test_the_table_of_runs_shows_the_others_and_why_one_is_unreadable(folder: Path) -> None:
    run_dir = _write(folder)
    run_dir.path.chmod(0o000)
    alone = _run_as_another("runs", cwd=folder)
    assert (alone.returncode, _has_four_parts(alone.stderr)) == (4, True), alone.stderr
    write_run(folder / "runs" / "other", WHOLE_LIFE)
    beside = _run_as_another("runs", "--json", cwd=folder)
    assert beside.returncode == 0, beside.stderr
    states = {row["name"]: row["state"] for row in json.loads(beside.stdout)["runs"]}
    assert states == {"other": "finished", "nano": "unreadable"}


def test_the_report_of_a_run_that_may_only_be_read_is_written_elsewhere(folder: Path) -> None:
    run_dir = _write(folder)
    run_dir.path.chmod(0o555)
    into = folder / "mine"
    into.mkdir()

    refused = _run_as_another("report", "nano", cwd=folder)
    written = _run_as_another("report", "nano", "--into", str(into), cwd=folder)

    assert (refused.returncode, _has_four_parts(refused.stderr)) == (4, True), refused.stderr
    assert "--into FOLDER" in refused.stderr
    assert (written.returncode, written.stdout) == (0, f"{into / 'report.md'}\n"), written.stderr
    assert (into / "report.md").read_text().startswith("# Run ")
    assert not run_dir.report.exists()


def test_a_folder_lint_names_what_it_cannot_read_and_checks_the_rest(folder: Path) -> None:
    for name in ("good.toml", "denied.toml"):
        (folder / name).write_text(BASE)
    (folder / "denied.toml").chmod(0o000)
    (folder / "closed").mkdir(mode=0o000)
    os.mkfifo(folder / "pipe.toml")
    (folder / "endless.toml").symlink_to("/dev/zero")

    ended = _run_as_another("lint", ".", cwd=folder)

    assert (ended.returncode, ended.stdout) == (4, "1 file is clean\n"), ended.stderr
    assert sorted(line for line in ended.stderr.splitlines() if line.startswith("error:")) == [
        "error: ./closed",
        "error: denied.toml",
    ]
