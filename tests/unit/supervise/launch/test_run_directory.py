"""What a run does to its directory before anything starts in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.programs import recorded
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


_KINDS = {name: get_args(get_type_hints(owner)[name]) for owner, name in ((Run, "program"), (RunSpec, "format"))}


@pytest.mark.parametrize("program", _KINDS["program"])
@pytest.mark.parametrize("file_format", _KINDS["format"])
@pytest.mark.parametrize("kind", ["pretrain", "serve", "command"])
def test_a_config_whose_program_lacks_its_table_cannot_be_read(
    tmp_path: Path, program: str, file_format: str, kind: str
) -> None:
    run_dir = RunDir(tmp_path)
    document = json.loads(to_json(RUN))
    document["run"] |= {"program": program, "kind": kind}
    run_dir.resolved.write_text(json.dumps(document | {"format": file_format}, indent=1), encoding="utf-8")
    lacks = {
        "command": "it is the run of a command, and has no table command",
        "prime_rl": "it is a run of prime-rl, and names no output_dir",
    }
    of_kind = {"serve": "vllm", "command": "command"}.get(kind, "bundled" if file_format == "run.toml" else "prime_rl")
    needed = lacks.get(of_kind if program == "auto" else program)
    if needed is None:
        chosen, run = recorded(run_dir)
        assert chosen.places(run, run_dir).checkpoints
        return
    with pytest.raises(UserError) as refused:
        recorded(run_dir)
    assert refused.value.what == f"it cannot be read: {needed}"
    assert recorded(run_dir, strict=False)[1].run.name == tmp_path.name
