"""Tasksets are opened before a run, and an answer is scored: what is wrong, and where.

Slow tests need an interpreter with verifiers 0.4: PRIME_TRAIN_VERIFIERS_PYTHON.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.core.findings import Severity
from prime_train.facts.facts import Facts, NotKnown, PartPackage, TasksetTrial
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.facts.interpreter import find_part_packages
from prime_train.facts.requirements import parts
from prime_train.facts.trials import try_tasksets
from prime_train.rules.data.tsk_tasks import taskset_does_not_open, taskset_not_installed
from prime_train.spec import RunSpec
from prime_train.spec.rl import TaskSource
from tests.system.environments.test_verifiers import TASKSET, needs_verifiers, write_source
from tests.system.facts.test_gather import quickstart


def run_with(*sources: TaskSource) -> RunSpec:
    return replace(quickstart(), tasks=sources)


def trial(source: TaskSource) -> TasksetTrial:
    found = try_tasksets(run_with(source), 60.0)
    assert not isinstance(found, NotKnown)
    return found[0]


def test_tasksets_are_opened_only_if_asked_for(tmp_path: Path) -> None:
    run = run_with(write_source(tmp_path))
    assert isinstance(gather(run, tmp_path, ["tasksets"]).tasksets, NotKnown)
    assert gather(quickstart(), tmp_path, ["tasksets"]).tasksets == ()
    (tmp_path / "my_env" / "__init__.py").unlink()
    for options in (ProbeOptions(deep=True), ProbeOptions(starts=True)):
        found = gather(run, tmp_path, ["tasksets"], options).tasksets
        assert not isinstance(found, NotKnown)
        assert "has no taskset" in found[0].fault


def test_what_is_not_installed_is_reported_once(tmp_path: Path) -> None:
    for source in (
        TaskSource(kind="verifiers", id="my-env", python="/no/python"),
        TaskSource(kind="verifiers", id="my-env", python=sys.executable),
        TaskSource(kind="verifiers", id=str(tmp_path / "none"), python=sys.executable),
        TaskSource(kind="reverse-text"),
    ):
        assert try_tasksets(run_with(source), 60.0) == ()


def test_an_interpreter_that_ends_is_a_fault() -> None:
    assert "exit code 0" in trial(TaskSource(kind="verifiers", id="my-env", python="/bin/true")).fault


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (PartPackage("tasks.0.id", "verifiers", "/x/python", "it is not installed"), "/x/python -m pip install"),
        (PartPackage("tasks.0.id", "my-env", "/x/python", "it is not installed"), "`id` = its folder"),
        (PartPackage("tasks.0.id", "./none", "/x/python", "there is no none"), "correct the path"),
        (PartPackage("tasks.0.id", "my-env", "/no/python", "/no/python does not start: gone"), "the path of an interp"),
    ],
)
def test_the_advice_is_for_what_is_missing(part: PartPackage, words: str) -> None:
    (problem,) = taskset_not_installed(quickstart(), Facts(part_packages=(part,)))
    assert words in problem.fix


def test_a_taskset_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").touch()
    source = TaskSource(kind="verifiers", id=str(tmp_path / "my_env.py"), python=sys.executable)
    assert find_part_packages(parts(run_with(source)))[1].fault == ""


@needs_verifiers
@pytest.mark.parametrize(
    ("before", "after", "fault", "fix"),
    [
        ("import asyncio", "raise ValueError('planted')", "ValueError: planted", "my_env/__init__.py, line 3"),
        ("return [", "raise OSError('no data')\n        return [", "OSError: no data", "my_env/__init__.py, line "),
        ("import asyncio", "import no_such_module", "imports no_such_module", "install it into"),
    ],
)
def test_a_taskset_that_does_not_open(tmp_path: Path, before: str, after: str, fault: str, fix: str) -> None:
    found = trial(write_source(tmp_path, TASKSET.replace(before, after)))
    assert fault in found.fault
    assert fix in found.fix
    (problem,) = taskset_does_not_open(quickstart(), Facts(tasksets=(found,)))
    assert problem.severity is None


@needs_verifiers
def test_a_reward_that_is_no_finite_number(tmp_path: Path) -> None:
    for number, (returned, fault) in enumerate(
        {'float("nan")': "it is nan", '"good"': "ValueError", "1 / 0": "ZeroDivisionError"}.items()
    ):
        (tmp_path / f"{number}").mkdir()
        found = trial(
            write_source(
                tmp_path / f"{number}", TASKSET.replace("return float(text == ran.stdout)", f"return {returned}")
            )
        )
        assert fault in found.reward_fault
        (problem,) = taskset_does_not_open(quickstart(), Facts(tasksets=(found,)))
        assert problem.severity is Severity.WARNING


@needs_verifiers
def test_a_good_taskset(tmp_path: Path) -> None:
    assert trial(write_source(tmp_path)) == TasksetTrial("tasks.0.id")
