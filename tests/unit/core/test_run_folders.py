"""A folder of a run that is a link out of it, or no folder, is refused; links within the run and to it are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import check_folders


@pytest.mark.parametrize(
    "name", ["events", "attempts", "checkpoints", "plots", "profile", "attempts/002", "attempts/001/evidence"]
)
def test_a_folder_that_leads_out_of_the_run_is_refused(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(theirs)
    with pytest.raises(UserError) as refused:
        check_folders(RunDir(tmp_path / "run"))
    assert (refused.value.where, refused.value.exit_code) == (str(tmp_path.resolve() / "run" / name), ExitCode.USAGE)
    assert str(theirs) in refused.value.what


@pytest.mark.parametrize("name", ["events", "attempts", "checkpoints"])
@pytest.mark.parametrize("target", ["gone", "loop", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str, target: str) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir()
    if target == "file":
        path.write_text("notes")
    else:
        path.symlink_to(tmp_path / "gone" if target == "gone" else path)
    with pytest.raises(UserError, match="it is not a folder") as refused:
        check_folders(RunDir(tmp_path / "run"))
    assert refused.value.fix == f"mv {path} {path}.aside"


def test_other_links_are_left_alone(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    (run / "logs").mkdir(parents=True)
    (run / "wandb").mkdir()
    (outside / "deeper").mkdir(parents=True)
    (run / "latest").symlink_to("logs")
    (run / "notes").symlink_to(tmp_path / "gone")
    (run / "loop").symlink_to(run / "loop")
    (run / "logs" / "latest").symlink_to(outside)  # of another program
    (tmp_path / "way").symlink_to(run)
    check_folders(RunDir(tmp_path / "way"))
    check_folders(RunDir(tmp_path / "missing"))
