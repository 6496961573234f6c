"""A watch is created for each key of [prime_train.watch] by the module of its name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from prime_train.core.rundir import RunDir
from prime_train.programs.bundled import PROGRAM
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.supervision import Watches as Answers
from prime_train.supervise.services import watch_runner
from prime_train.supervise.watches.watch import RunningWatches


def create(tmp_path: Path, answers: Answers) -> RunningWatches:
    run = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=()))
    run = replace(run, prime_train=replace(run.prime_train, watch=answers))
    return watch_runner.create_watches(run, RunDir(tmp_path), PROGRAM)


def test_each_key_that_is_not_off_has_its_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_METADATA", "aws=http://127.0.0.1:9")  # else only a cloud has a watch for notices
    assert [watch.name for watch in create(tmp_path, Answers())] == [
        "gpu",
        "disk",
        "host",
        "straggler",
        "preemption",
        "cost",
    ]
    assert [watch.name for watch in create(tmp_path, Answers(hang="alert"))] == [
        "gpu",
        "disk",
        "hang",
        "host",
        "straggler",
        "preemption",
        "cost",
    ]
    off = Answers(
        gpu="off", engine="off", hang="off", disk="off", host="off", straggler="off", preemption="off", cost="off"
    )
    assert list(create(tmp_path, off)) == []


def test_a_new_watch_is_one_module_with_the_name_of_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine.py").write_text("def create(context):\n    return ('a watch of', context.run.run.name)\n")
    package: ModuleType = sys.modules["prime_train.supervise.watches"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert ("a watch of", "a") in list[object](create(tmp_path, Answers()).others)
