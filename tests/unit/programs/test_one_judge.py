"""Every command and the supervisor agree which checkpoints are complete, however they are damaged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.checkpoints.cleanup import newest_usable
from prime_train.checkpoints.layout import MANIFEST, write_manifest
from prime_train.checkpoints.stock import Stock
from prime_train.config import detect
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs import program_of
from prime_train.programs.prime_rl.run_directory import find_folder as folder_of
from prime_train.programs.prime_rl.settings import prepare_run
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.supervise.launch.program import Program
from prime_train.supervise.launch.run_directory import choose_checkpoint
from prime_train.views.run import checkpoints as view
from prime_train.views.run.status import read_status
from tests.fakes.prime_rl_launcher.standin import metadata
from tests.unit.programs.prime_rl.test_program import HEAD

STEPS = (10, 20, 30)
DATA = "__0_0.distcp"


def bundled(tmp_path: Path) -> tuple[RunSpec, RunDir, Path]:
    run_dir = RunDir(tmp_path / "runs" / "a")
    for step in STEPS:
        run_dir.checkpoint(step).mkdir(parents=True)
        (run_dir.checkpoint(step) / DATA).write_bytes(bytes(100))
        (run_dir.checkpoint(step) / ".metadata").write_bytes(b"")
        write_manifest(run_dir.checkpoint(step), step)
    run = RunSpec(
        run=Run(name="a", max_steps=40, dir=str(tmp_path / "runs")),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=10),
    )
    return run, run_dir, run_dir.checkpoint(30)


def prime_rl(tmp_path: Path) -> tuple[RunSpec, RunDir, Path]:
    before = detect.read(HEAD, "rl.toml").run
    assert before is not None
    run, run_dir = prepare_run(before, "a", tmp_path), RunDir(tmp_path / "runs" / "a")
    run = replace(run, run=replace(run.run, dir=str(tmp_path / "runs")))
    saved = folder_of(run) / "checkpoints"
    for step in STEPS:
        for part in ("trainer", "orchestrator"):
            (saved / f"step_{step}" / part).mkdir(parents=True)
        (saved / f"step_{step}" / "trainer" / DATA).write_bytes(bytes(100))
        (saved / f"step_{step}" / "trainer" / ".metadata").write_bytes(metadata({DATA: 100}))
        (saved / f"step_{step}" / "orchestrator" / "progress.pt").write_bytes(b"x")
    return run, run_dir, saved / "step_30"


def emptied(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"")


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, 50)


def gone(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def nonsense(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"nonsense")


def of_another_step(folder: Path) -> None:
    text = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(text | {"step": 29}))


def renamed(folder: Path) -> None:
    folder.rename(folder.with_name(f"aside.{folder.name}"))


TRAINERS = "trainer/.metadata"
PROGRESS = "orchestrator/progress.pt"
DAMAGES = [
    *((bundled, damage) for damage in (emptied(MANIFEST), gone(MANIFEST), nonsense(MANIFEST), of_another_step)),
    *((bundled, damage) for damage in (emptied(DATA), cut(DATA), gone(DATA), renamed)),
    *((prime_rl, damage) for damage in (emptied(TRAINERS), gone(TRAINERS), nonsense(TRAINERS), renamed)),
    *((prime_rl, damage(f"trainer/{DATA}")) for damage in (emptied, cut, gone)),
    *((prime_rl, damage(PROGRESS)) for damage in (emptied, gone)),
]


def newest_by_user(program: Program, run: RunSpec, run_dir: RunDir) -> dict[str, int | None]:
    """The newest complete checkpoint as each user sees it."""
    found = program.checkpoints(run, run_dir)
    folder = program.run_folder(run, program.write_dir(run, run_dir))
    items = Stock(program.places(run, run_dir)).take(time.time())
    rows = view.list_json("", view.saved(run_dir), (), time.time())["checkpoints"]
    usable = newest_usable(items, program.keep(run))
    verified = view.verify(run_dir, lambda _: None)
    return {
        "the supervisor": choose_checkpoint(found, ())[0],
        "validate": next((one.step for one in folder.checkpoints if not one.problem), None),
        "the disk watch and prune": usable.step if usable is not None else None,
        "ckpt list": next((row["step"] for row in rows if row["resume"]), None),
        "ckpt verify": next((one.step for one in verified if one.state in ("verified", "whole")), None),
        "status": read_status(run_dir, time.time()).newest_complete,
    }


@pytest.mark.parametrize("made", [bundled, prime_rl])
def test_all_take_the_newest_one_that_is_whole(
    made: Callable[[Path], tuple[RunSpec, RunDir, Path]], tmp_path: Path
) -> None:
    run, run_dir, _ = made(tmp_path)
    run_dir.path.mkdir(parents=True, exist_ok=True)
    run_dir.resolved.write_text(spec.to_json(run))
    assert set(newest_by_user(program_of(run), run, run_dir).values()) == {30}


@pytest.mark.parametrize(("made", "damage"), DAMAGES)
def test_none_takes_one_that_is_damaged(
    made: Callable[[Path], tuple[RunSpec, RunDir, Path]], damage: Callable[[Path], object], tmp_path: Path
) -> None:
    run, run_dir, newest = made(tmp_path)
    run_dir.path.mkdir(parents=True, exist_ok=True)
    run_dir.resolved.write_text(spec.to_json(run))
    damage(newest)
    assert newest_by_user(program_of(run), run, run_dir) == dict.fromkeys(
        ("the supervisor", "validate", "the disk watch and prune", "ckpt list", "ckpt verify", "status"), 20
    )


def test_a_checkpoint_without_hashes_is_not_packed(tmp_path: Path) -> None:
    run, run_dir, _ = prime_rl(tmp_path)
    run_dir.path.mkdir(parents=True)
    run_dir.resolved.write_text(spec.to_json(run))
    for step in (None, 30):
        with pytest.raises(UserError, match="a checkpoint of prime-rl cannot be packed"):
            view.complete(run_dir, step)
