"""A real supervisor answers requests to change settings: one version after the other, each checked, none lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.core.errors import ExitCode
from prime_train.core.plans import list_versions, read_plan
from prime_train.core.rundir import RunDir
from prime_train.events import (
    EventLog,
    HangFound,
    InstabilityFound,
    LaunchAsked,
    RequestAnswered,
    RequestRefused,
    SettingsAccepted,
    SettingsApplied,
)
from prime_train.spec import to_json
from prime_train.supervise.processes.ask import ask, create_request_id
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.processes.requests import SETTINGS_REQUESTED
from tests.system.supervise.test_loop import SLOWLY, Supervised, state_of
from tests.unit.cli.commands import DEADLINE_S, PROGRAM, prime_train
from tests.unit.trainer import tiny

CONFIG = """
[run]
name = "run"
max_steps = 100000
[[data.sources]]
kind = "python-stdlib"
[data]
"""
MANY = 1_500  # more than one look of the supervisor visits


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    own = Supervised(prepare(tmp_path), "train", *SLOWLY)
    own.until(lambda state: state.step > 0)
    yield own
    own.process.terminate()
    own.end()


def prepare(folder: Path) -> RunDir:
    run_dir = RunDir(folder / "run")
    run_dir.path.mkdir()
    run_dir.config.write_text(CONFIG)
    found = detect.read(CONFIG, "run.toml").run
    assert found is not None
    run_dir.resolved.write_text(to_json(found))
    return run_dir


def change(run_dir: RunDir, values: dict[str, object], expected: int, request_id: str = "") -> RequestAnswered:
    body = {"values": values, "expected": expected, "by": "me@here", "why": "a test"}
    return ask(run_dir, 1, SETTINGS_REQUESTED, body, request_id or create_request_id(), 120.0)


def test_a_change_becomes_a_plan_and_the_second_editor_gets_the_first_ones(supervised: Supervised) -> None:
    run_dir = supervised.run_dir
    first = change(run_dir, {"optim.lr": 2e-4}, 0, "first")
    assert (first.outcome, first.what) == ("accepted", "settings version 1: optim.lr = 0.0002, was 0.001")
    plan = read_plan(run_dir.settings, 1)
    assert (plan.values, plan.by, plan.why) == ({"optim.lr": 2e-4}, "me@here", "a test")
    [accepted] = [event for event in tiny.events(run_dir) if isinstance(event, SettingsAccepted)]
    assert accepted == SettingsAccepted(1, ("optim.lr = 0.0002",), "me@here", "a test")

    second = change(run_dir, {"optim.lr": 3e-4}, 0)
    assert second.outcome == "refused"
    assert "version 1, not 0: me@here set optim.lr = 0.0002 (a test)" in second.what
    assert "--expect 1" in second.fix

    early = change(run_dir, {"optim.lr": 3e-4}, 7)
    assert (early.outcome, early.what) == ("refused", "the settings are at version 1, not 7")
    assert (early.why, early.fix) == ("no change has this number", "give a version that there is: --expect 1")

    wrong = change(run_dir, {"optim.lr": -1}, 1)
    assert (wrong.outcome, wrong.what) == ("refused", "optim.lr = -1 is not > 0")
    assert wrong.why
    assert wrong.fix

    # A writer that saw no answer repeats its request: it has the answer that it had, and nothing happens twice.
    assert change(run_dir, {"optim.lr": 2e-4}, 0, "first") == first
    assert list_versions(run_dir.settings) == [1]
    assert state_of(run_dir).settings_version == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"values": {}, "expected": 0},
        {"values": {"optim.lr": 1}, "expected": "0"},
        {"values": {"optim.lr": {"a": 1}}, "expected": 0},
        {"values": {str(n): n for n in range(65)}, "expected": 0},
        {"values": {"optim.lr": 1}, "expected": 0, "why": "x" * 501},
    ],
)
def test_a_body_that_is_none_is_refused_at_once(supervised: Supervised, body: dict[str, object]) -> None:
    answer = ask(supervised.run_dir, 1, SETTINGS_REQUESTED, body, create_request_id())
    assert answer.outcome == "refused"
    assert "no values and expected version" in answer.what


def test_many_requests_at_once_make_one_change(supervised: Supervised) -> None:
    run_dir = supervised.run_dir
    holder = find_holder(run_dir)
    assert holder is not None
    folder = run_dir.requests(1)
    body = {"values": {"optim.lr": 2e-4}, "expected": 0, "by": "", "why": ""}
    content = json.dumps(
        {"version": 1, "kind": SETTINGS_REQUESTED, "supervisor": str(holder.identity), "id": "ID", "body": body}
    )
    for number in range(MANY):
        (folder / f".{number}").write_text(content.replace("ID", f"r-{number}"))
        (folder / f".{number}").rename(folder / f"many-{number}.json")
    step = state_of(run_dir).step
    tiny.until(lambda: len(answers(run_dir)) == MANY)
    outcomes = [event.outcome for event in answers(run_dir)]
    assert outcomes.count("accepted") == 1
    assert list_versions(run_dir.settings) == [1]
    assert not any(isinstance(event, RequestRefused) for event in tiny.events(run_dir))
    # The trainer goes on meanwhile.
    supervised.until(lambda state: state.step > step)


def answers(run_dir: RunDir) -> list[RequestAnswered]:
    return [event for event in tiny.events(run_dir) if isinstance(event, RequestAnswered)]


def test_a_change_that_comes_too_late_for_a_run_that_finishes_is_answered_so(tmp_path: Path) -> None:
    near, run_dir = tmp_path / "near", prepare(tmp_path)
    own = Supervised(run_dir, "finish", "max_steps=12", "at_step=100", f"waits_for={near}")
    own.until(lambda state: state.step > 0)
    assert change(run_dir, {"optim.lr": 2e-4}, 0, "late").outcome == "accepted"
    near.touch()
    assert own.end() == ExitCode.OK
    last = answers(run_dir)[-1]
    assert (last.request_id, last.outcome) == ("late", "done")
    assert last.what == "settings version 1 was never in force: the run ended before it"
    shown = prime_train("set", "run", "--history", cwd=run_dir.path.parent)
    assert "never: the run ended before it  optim.lr = 0.0002" in shown.stdout
    shown = prime_train("status", "run", cwd=run_dir.path.parent)
    assert "version 1; in force: 0; the run ended before the newest one" in " ".join(shown.stdout.split())


def test_set_waits_until_the_change_is_in_force_or_the_run_has_ended(supervised: Supervised) -> None:
    """The trainer here takes no change: its event is written as a trainer writes it."""
    run_dir = supervised.run_dir
    trainer = EventLog(run_dir.events, "trainer-001-rank1")
    command = [str(PROGRAM), "set", "run", "optim.lr=2e-4", "--wait"]
    first = subprocess.Popen(command, cwd=run_dir.path.parent, stdout=subprocess.PIPE, text=True)
    supervised.until(lambda state: state.settings_version == 1)
    trainer.append(SettingsApplied(1, 1, 7, ("optim.lr = 0.0002",), 100))
    assert first.communicate(timeout=DEADLINE_S)[0].endswith("was 0.001; in force from step 7 on\n")

    second = subprocess.Popen(
        [*command[:3], "optim.lr=3e-4", "--wait"], cwd=run_dir.path.parent, stderr=subprocess.PIPE
    )
    supervised.until(lambda state: state.settings_version == 2)
    supervised.process.terminate()
    assert b"settings version 2 is not in force yet" in second.communicate(timeout=DEADLINE_S)[1]
    assert second.returncode == ExitCode.RESUMABLE


def test_a_limit_of_silence_counts_at_once_for_a_trainer_that_hangs_already(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path)
    own = Supervised(run_dir, "hang", "times=once", "max_steps=60")  # its limit is 300 s
    try:
        own.until(lambda state: state.step > 0)
        answer = change(run_dir, {"prime_train.heartbeat.step_limit_s": 0.5}, 0)
        assert answer.what == "settings version 1: prime_train.heartbeat.step_limit_s = 0.5, was unset"
        own.until(lambda state: state.attempt_number == 2)
        assert own.end() == 0
    finally:
        own.process.kill()
    [hang] = [event for event in tiny.events(run_dir) if isinstance(event, HangFound)]
    assert hang.limit_s == 0.5


def test_a_trainer_that_ended_for_a_loss_goes_on_from_a_checkpoint_with_a_lower_rate(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path)
    own = Supervised(run_dir, "diverge", "times=once", "max_steps=60")
    try:
        own.until(lambda state: state.step > 0)
        assert change(run_dir, {"prime_train.instability.policy": "auto"}, 0).outcome == "accepted"
        assert own.end() == 0
    finally:
        own.process.kill()
    events = tiny.events(run_dir)
    [found] = [event for event in events if isinstance(event, InstabilityFound)]
    assert (found.step, found.go_back_to, found.values, found.auto) == (16, 10, ("optim.lr = 0.0005",), True)
    assert [event.resume_step for event in events if isinstance(event, LaunchAsked)] == [0, 10]
    assert [event.by for event in events if isinstance(event, SettingsAccepted)] == ["me@here", "policy"]
    assert read_plan(run_dir.settings, 2).values == {"optim.lr": 0.0005}
