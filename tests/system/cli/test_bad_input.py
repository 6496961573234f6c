"""What `run` says to what it cannot run: a message in four parts, the right exit code, and nothing half-done."""

import resource
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prime_train.checkpoints import layout
from prime_train.cli.entry import main
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, read
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, supervised
from tests.unit.cli.small import CONFIG

FULL_AT_BYTES = 100_000  # less than a checkpoint, more than a log


@dataclass(frozen=True)
class Row:
    """A way to use it wrongly. `broken` replaces a part of the config; `unreadable` is a path that leads nowhere."""

    exit_code: int
    said: tuple[str, ...]
    options: tuple[str, ...] = ()
    broken: tuple[str, str] = ("", "")
    config: str = "run.toml"
    files: dict[str, str] = field(default_factory=dict)
    unreadable: str = ""


def _set(assignment: str, *said: str) -> Row:
    return Row(1, ("error[", *said), ("--set", assignment))


ROWS = {
    "missing file": Row(2, ("error: rnu.toml", "there is no such file", "did you mean run.toml?"), config="rnu.toml"),
    "missing preset": Row(2, ("error: quickstrat", "the preset quickstart?"), config="quickstrat"),
    "a folder": Row(2, ("error: text", "it is a folder"), config="text"),
    "not TOML": Row(1, ("error[CFG001] run.toml:2:",), broken=("[run]", "[run")),
    "not UTF-8": Row(2, ("not UTF-8",), broken=("small", "sm\udcffll")),
    "empty config": Row(1, ("the table [run] is missing",), broken=(CONFIG, "")),
    "unknown key": Row(1, ("model.layrs", "layers"), broken=("layers", "layrs")),
    "unknown key that is set": _set("run.max_stepz=5", "run.max_stepz", "max_steps"),
    "wrong type": Row(1, ("run.max_steps", "number"), broken=("max_steps = 12", 'max_steps = "12"')),
    "model folder missing": _set("model.path=nowhere", "error[MOD002]", "there is no such folder"),
    "tokenizer folder missing": _set("tokenizer.path=nowhere", "error[TOK001]", "there is no such folder"),
    "data missing": Row(1, ("error[DAT003]", "data.sources.0.path"), broken=('"text"', '"nowhere"')),
    "empty data": Row(1, ("error[DAT003]", "empty"), broken=('"text"', '"a.txt"'), files={"a.txt": ""}),
    "data path unreadable": Row(1, ("error[DAT003]",), broken=('"text"', '"loop"'), unreadable="loop"),
    "read-only save directory": _set("run.dir=/proc/runs", "error[DSK002]", "/proc"),
    "save directory is a file": _set("run.dir=taken", "taken"),
    "more processes than it can start": _set("parallel.processes=100000", "parallel.processes", "100000 process"),
    "no such checkpoint": Row(2, ("there is no such checkpoint", "--resume auto"), ("--resume", "5")),
    "wrong --resume": Row(2, ("error: --resume newest", "none of auto, never, STEP"), ("--resume", "newest")),
    "--set without a value": Row(2, ("error: --set run.max_steps",), ("--set", "run.max_steps")),
    "--set of two words": Row(2, ("error: --set eval.prompts",), ("--set", "eval.prompts=two words")),
    "unchecked": Row(
        2,
        ("warning: --no-validate: memory, disk, paths, model and data are not checked", "cannot be written"),
        ("--no-validate", "--set", "run.dir=taken"),
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_bad_input_is_reported_and_leaves_nothing_behind(
    here: Path, row: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if row.broken[0]:
        text = CONFIG.replace(*row.broken).encode(errors="surrogateescape")
        (here / "run.toml").write_bytes(text)
    for name, content in {"taken": "a file", **row.files}.items():
        (here / name).write_text(content)
    if row.unreadable:
        (here / row.unreadable).symlink_to(row.unreadable)
    before = names(here)
    arguments = ["prime-train", "run", row.config, *row.options]
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    refused(subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr()), row.exit_code, *row.said)
    assert names(here) == before


def refused(done: subprocess.CompletedProcess[str], exit_code: int, *said: str) -> None:
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for words in (*said, "\n  what  ", "\n  why   ", "\n  fix   "):
        assert words in done.stderr


def names(here: Path) -> list[str]:
    return sorted(path.name for path in here.iterdir())


def nothing_written(here: Path) -> None:
    assert names(here) == ["run.toml", "text"]


def test_a_second_run_of_the_same_name_isrefused(here: Path) -> None:
    with supervised(here, "small") as (run_dir, process):
        before = sorted(path.name for path in run_dir.path.iterdir())
        done = prime_train("run", "run.toml", cwd=here)
        refused(done, 2, f"held by process {process.pid}", "prime-train stop small")
        assert sorted(path.name for path in run_dir.path.iterdir()) == before


def test_a_disk_that_is_full_in_a_save_ends_the_run_and_no_half_checkpoint_counts(here: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "run", "run.toml"],
        cwd=here,
        env=clean_environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT_BYTES, FULL_AT_BYTES)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    run_dir = RunDir(here / "runs" / "small")
    (ended,) = (record.event for record in read(run_dir.events) if isinstance(record.event, AttemptEnded))
    assert ended.cause_class == "disk"
    for words in (ended.what, ended.why, ended.fix):
        assert words
        assert words in done.stdout + done.stderr
    assert layout.newest_complete(run_dir.checkpoints) is None
