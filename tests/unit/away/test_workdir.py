"""What a job copies of a folder, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.away.sky.workdir import find_link, measure


def test_the_git_folder_of_a_clone_below_is_copied_and_may_hold_a_login(tmp_path: Path) -> None:
    for clone in (tmp_path, tmp_path / "third_party" / "x"):
        (clone / ".git").mkdir(parents=True)
        (clone / ".git" / "config").write_text("[core]")
    copied = measure(tmp_path)
    assert (copied.files, copied.size_bytes, copied.secrets) == (1, 6, ("third_party/x/.git/",))
    (tmp_path / ".skyignore").write_text("third_party/x/.git\n")
    copied = measure(tmp_path)
    assert (copied.files, copied.secrets) == (1, ())  # .skyignore itself


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("train.py", ""),
        (".", ""),
        ("configs/v3.yaml", ""),
        ("/dev/stdin", ""),
        ("a\0b", ""),
        ("--config=configs/current.yaml", "configs/current.yaml"),
        ("data:linked/../linked/deep/x", "linked/../linked/deep/x"),
    ],
)
def test_a_word_with_a_link(tmp_path: Path, word: str, found: str) -> None:
    (tmp_path / "project" / "configs").mkdir(parents=True)
    (tmp_path / "project" / "configs" / "current.yaml").symlink_to("v3.yaml")
    (tmp_path / "project" / "linked").symlink_to("configs")
    (tmp_path / "link").symlink_to("project")
    assert find_link(word, tmp_path / "link") == found
