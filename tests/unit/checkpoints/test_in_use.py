"""Marks of folders that are in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.checkpoints import in_use

KILLED_AT_FSYNC = """
import os, signal, sys
from pathlib import Path
from prime_train.checkpoints import in_use
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
with in_use.using(Path(sys.argv[1])):
    pass
"""


def has_nameless_files(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("is_nameless_first", [True, False])
def test_a_mark_stands_while_the_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_nameless_first: bool
) -> None:
    if not is_nameless_first:
        monkeypatch.setattr(os, "O_TMPFILE", 0)  # as on a file system without nameless files
    mark = tmp_path / f"IN_USE.{os.getpid()}"
    mark.write_text("an ended process had the same pid")
    with in_use.using(tmp_path):
        assert os.listdir(tmp_path) == [mark.name]
        assert in_use.marked_by(tmp_path).startswith(f"process {os.getpid()} on ")
    assert os.listdir(tmp_path) == []


def test_a_kill_before_the_mark_is_written_leaves_nothing(tmp_path: Path) -> None:
    if not has_nameless_files(tmp_path):
        pytest.skip("the file system of the temporary folder has no nameless files")
    ended = subprocess.run([sys.executable, "-c", KILLED_AT_FSYNC, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_gone_cannot_be_marked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), in_use.using(tmp_path / "gone"):
        pass
