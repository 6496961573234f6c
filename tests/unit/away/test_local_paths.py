"""Which words of a command name a place that only this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.away.sky.workdir import find_local_path


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("train.py", ""),
        ("./deep/../train.py", ""),
        ("not-there/x", ""),
        ("--lr=1e-3", ""),
        ("https://huggingface.co/etc/passwd", ""),
        ("s3://bucket/etc/passwd", ""),
        ("OWNER/NAME", ""),
        ("/dev/null", ""),
        ("PATH=/usr/bin:/bin", ""),
        ("/tmp", ""),
        ("/not-there/but-perhaps-on-the-machine", ""),
        ("a\0b", ""),
        ("x" * 5000, ""),
        ("/etc/passwd", "/etc/passwd"),
        ("--data=/etc/passwd", "/etc/passwd"),
        ("data=[/etc/passwd,/x]", "/etc/passwd"),
        ("file:///etc/passwd", "///etc/passwd"),
        ("~/not-there", "~/not-there"),
        ("..", ".."),
        ("../project/train.py", "../project/train.py"),
        ("out.txt", "out.txt"),
        ("deep/out.txt", "deep/out.txt"),
    ],
)
def test_a_word_with_a_local_path(tmp_path: Path, word: str, found: str) -> None:
    folder = tmp_path / "project"
    (folder / "deep").mkdir(parents=True)
    (folder / "train.py").write_text("")
    (tmp_path / "elsewhere").write_text("")
    for link in (folder / "out.txt", folder / "deep" / "out.txt"):
        link.symlink_to(tmp_path / "elsewhere")
    assert find_local_path(word, folder) == found


def test_an_absolute_path_in_the_folder_is_one_of_this_machine(tmp_path: Path) -> None:
    assert find_local_path(f"--out={tmp_path}/not-there", tmp_path) == f"{tmp_path}/not-there"
