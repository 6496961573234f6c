"""Transformations are tried on documents before a run: what is wrong, in four parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.facts.facts import Facts, NotKnown, TransformTrial
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.rules.data.trf_transforms import transform_fails
from prime_train.spec import RunSpec, Source
from tests.system.facts.test_gather import quickstart

_MODULE = """
import sys

def clean(text):
    print("talks", flush=True)
    return text.strip()

def no_bee(text):
    assert "bee" not in text, "a bee"
    return text

def leave(text):
    sys.exit(3)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """A run on two documents, in a working directory with a module of functions."""
    (tmp_path / "cleaning.py").write_text(_MODULE)
    # A file of the folder must not stand in for a library.
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    rows = [{"text": "an ant"}, {"text": "a bee"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return replace(quickstart(), data=replace(quickstart().data, sources=(Source(kind="files", path="rows.jsonl"),)))


def tried(run: RunSpec, folder: Path, *names: str) -> tuple[TransformTrial, ...] | NotKnown:
    run = replace(run, data=replace(run.data, allowed_transforms=names))
    return gather(run, folder, ["transforms"], ProbeOptions(starts=True)).transforms


def test_a_function_is_called_with_the_first_documents(run: RunSpec, tmp_path: Path) -> None:
    found = tried(run, tmp_path, "cleaning:clean", "cleaning:no_bee", "cleaning:gone", "elsewhere:f")
    assert not isinstance(found, NotKnown)
    good, failed, gone, elsewhere = found
    assert good == TransformTrial("data.allowed_transforms.0")
    assert failed.what.startswith("cleaning:no_bee failed: AssertionError: a bee")
    assert failed.where == f"{tmp_path}/rows.jsonl: record 2"
    assert "has no attribute 'gone'" in gone.what
    assert "No module named 'elsewhere'" in elsewhere.what
    problems = list(transform_fails(run, Facts(transforms=found)))
    assert [problem.at for problem in problems] == [f"data.allowed_transforms.{number}" for number in (1, 2, 3)]
    assert all(problem.why and problem.fix for problem in problems)


def test_a_function_that_ends_its_process_is_a_fault(run: RunSpec, tmp_path: Path) -> None:
    found = tried(run, tmp_path, "cleaning:leave")
    assert not isinstance(found, NotKnown)
    assert "SystemExit" in found[0].what


def test_nothing_is_imported_unless_it_is_asked_for(run: RunSpec, tmp_path: Path) -> None:
    assert tried(run, tmp_path) == ()
    allowed = replace(run, data=replace(run.data, allowed_transforms=("cleaning:clean",)))
    assert isinstance(gather(allowed, tmp_path, ["transforms"]).transforms, NotKnown)
