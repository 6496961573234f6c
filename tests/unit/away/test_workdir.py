"""What a job copies of a folder, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

from prime_train.away.sky.workdir import measure


def test_the_git_folder_of_a_clone_below_is_copied_and_may_hold_a_login(tmp_path: Path) -> None:
    for clone in (tmp_path, tmp_path / "third_party" / "x"):
        (clone / ".git").mkdir(parents=True)
        (clone / ".git" / "config").write_text("[core]")
    copied = measure(tmp_path)
    assert (copied.files, copied.size_bytes, copied.secrets) == (1, 6, ("third_party/x/.git/",))
    (tmp_path / ".skyignore").write_text("third_party/x/.git\n")
    copied = measure(tmp_path)
    assert (copied.files, copied.secrets) == (1, ())  # .skyignore itself
