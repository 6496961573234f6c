"""A folder has its name only when it is complete."""

import os
from pathlib import Path

import pytest

from prime_train.core.whole_folder import write_folder


def test_a_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    (tmp_path / ".made.partial").mkdir()
    (tmp_path / ".made.partial" / "left by a killed process").touch()
    with write_folder(tmp_path / "made", replaces=False) as beside:
        (beside / "file").write_text("whole")
        assert not (tmp_path / "made").exists()
    assert os.listdir(tmp_path) == ["made"]
    assert os.listdir(tmp_path / "made") == ["file"]


@pytest.mark.parametrize("replaces", [True, False])
def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path, replaces: bool) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "before").touch()
    with pytest.raises(IsADirectoryError), write_folder(tmp_path / "made", replaces=replaces) as beside:
        beside.write_text("a write that fails")
    assert os.listdir(tmp_path) == ["made"]
    assert os.listdir(tmp_path / "made") == ["before"]


def test_a_folder_that_exists_is_replaced_on_request_alone(tmp_path: Path) -> None:
    for replaces in (False, True, True):
        with write_folder(tmp_path / "made", replaces=replaces) as beside:
            (beside / str(replaces)).touch()
    assert os.listdir(tmp_path / "made") == ["True"]
    with pytest.raises(FileExistsError), write_folder(tmp_path / "made", replaces=False):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError), write_folder(tmp_path / "link", replaces=False):
        pass
    assert sorted(os.listdir(tmp_path)) == ["link", "made"]
