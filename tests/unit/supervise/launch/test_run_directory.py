"""What a run does to its directory before anything starts in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.spec import Data, Run, RunSpec, Source, to_json
from prime_train.supervise.launch.run_directory import read_earlier, read_run_spec

RUN = RunSpec(run=Run(name="run", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_instead_of_the_folder_of_checkpoints_is_refused_before_anything_starts(
    tmp_path: Path, *, is_link: bool
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    if is_link:
        run_dir.checkpoints.symlink_to("gone")
    else:
        run_dir.checkpoints.write_text("notes", encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_earlier(run_dir, RUN, writes=True)
    assert (refused.value.where, refused.value.exit_code) == (str(run_dir.checkpoints), ExitCode.USAGE)
    assert refused.value.fix == f"mv {run_dir.checkpoints} {run_dir.checkpoints}.aside"
    run_dir.checkpoints.unlink()
    run_dir.checkpoints.mkdir()
    assert read_earlier(run_dir, RUN, writes=True).run is None


def test_the_first_config_of_a_run_is_read_whether_or_not_it_is_the_likely_one(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert read_run_spec(run_dir, likely=RUN) is None
    run_dir.resolved.write_text(to_json(RUN), encoding="utf-8")
    assert read_run_spec(run_dir, likely=RUN) is RUN
    other = replace(RUN, run=replace(RUN.run, max_steps=11))
    assert read_run_spec(run_dir, likely=other) == read_run_spec(run_dir) == RUN
    run_dir.resolved.write_text(to_json(RUN)[:-1], encoding="utf-8")
    with pytest.raises(UserError):
        read_run_spec(run_dir, likely=RUN)
