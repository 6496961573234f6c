"""A change of settings is judged by the schema and by the rules, with a message of four parts for each fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prime_train.config import detect
from prime_train.core.errors import UserError
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, LaunchAsked, SettingsApplied
from prime_train.spec import to_json
from prime_train.supervise.answers.check_settings import check, read_present, refuse_start
from prime_train.supervise.launch.run_directory import Resume
from tests.unit.views.written_runs import write_config

CONFIG = """
[run]
name = "a"
max_steps = 100
{run}
[data]
[[data.sources]]
kind = "python-stdlib"
[schedule]
warmup_steps = 40
[parallel]
processes = 2
machines = {machines}
{layout}
"""


def open_run(folder: Path, *, run: str = "", machines: int = 1, layout: str = "") -> RunDir:
    run_dir = RunDir(folder / "a")
    run_dir.path.mkdir()
    write_config(run_dir, CONFIG.format(run=run, machines=machines, layout=layout))
    return run_dir


def test_a_change_has_its_values_with_those_before(tmp_path: Path) -> None:
    run_dir = open_run(tmp_path)
    change = check(run_dir, {"optim.lr": 1, "optim.clip_norm": 0.5}, 10)
    assert change.values == {"optim.lr": 1.0, "optim.clip_norm": 0.5}
    assert change.before == change.config == {"optim.lr": 0.001, "optim.clip_norm": 1.0}
    assert change.texts == ("optim.lr = 1.0, was 0.001", "optim.clip_norm = 0.5, was 1.0")


def test_steps_to_skip_are_a_list_of_step_numbers(tmp_path: Path) -> None:
    run_dir = open_run(tmp_path)
    change = check(run_dir, {"optim.skip_steps": [20, 21]}, 10)
    assert (change.values, change.before) == ({"optim.skip_steps": [20, 21]}, {"optim.skip_steps": []})
    for wrong in ([0], [1.5], 20, ["all"]):
        with pytest.raises(UserError, match=r"optim\.skip_steps"):
            check(run_dir, {"optim.skip_steps": wrong}, 10)


def test_accepted_changes_are_what_was_before(tmp_path: Path) -> None:
    run_dir = open_run(tmp_path)
    write_plan(run_dir.settings, ChangePlan(version=1, values={"optim.lr": 0.5}, before={}, config={"optim.lr": 0.001}))
    change = check(run_dir, {"optim.lr": 0.25}, 10)
    assert (change.before, change.config) == ({"optim.lr": 0.5}, {"optim.lr": 0.001})


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"optim.lr": 0}, "optim.lr = 0 is not > 0"),
        ({"optim.lr": "fast"}, "optim.lr must be a number"),
        ({"optim.lr": None}, "optim.lr"),
        ({"optim.lr": 0.001}, "nothing changes: optim.lr = 0.001 already"),
        ({"optim.lrr": 0.1}, "there is no key optim.lrr"),
        ({"lr": 0.1}, "there is no key lr"),
        ({"optim": 0.1}, "there is no key optim"),
        ({"x" * 200: 0.1}, "there is no key xxx"),
        ({"optim.beta1": 0.8}, "optim.beta1 does not change while the run trains"),
        ({"model.layers": 3}, "model.layers does not change while the run trains"),
        ({"run.max_steps": 9}, "run.max_steps = 9 is below the present step 10"),
        ({"optim.muon_lr": 0.1}, "optim.muon_lr has no effect"),
        ({"optim.lr": 0.1, "checkpoint.interval_steps": 0}, "checkpoint.interval_steps = 0 is not > 0"),
    ],
)
def test_a_fault_has_four_parts(tmp_path: Path, values: dict[str, Any], what: str) -> None:
    run_dir = open_run(tmp_path)
    with pytest.raises(UserError) as caught:
        check(run_dir, values, 10)
    assert what in caught.value.what
    assert all(caught.value.parts()[part] for part in ("what", "where", "why", "fix"))


@pytest.mark.parametrize("key", ["optim.lrr", "lr"])
def test_a_misspelt_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match=r"did you mean optim\.lr\?"):
        check(open_run(tmp_path), {key: 0.3}, 10)


def test_a_run_on_several_machines_takes_a_change(tmp_path: Path) -> None:
    assert check(open_run(tmp_path, machines=2), {"optim.lr": 0.1}, 10).values == {"optim.lr": 0.1}


def test_a_run_that_has_not_begun_takes_no_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has not begun"):
        check(RunDir(tmp_path), {"optim.lr": 0.1}, 0)


BATCH = """
[run]
name = "a"
max_steps = 100
[data]
[[data.sources]]
kind = "python-stdlib"
[batch]
micro_batch = 2
global_batch = 8
[parallel]
processes = {processes}
"""


def start(run_dir: RunDir, processes: int, resume: Resume = "auto") -> None:
    text = BATCH.format(processes=processes)
    found = detect.read(text, "run.toml").run
    assert found is not None
    refuse_start(text, found, run_dir, resume)


def test_a_start_is_judged_with_the_changes_that_are_in_force(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "a")
    start(run_dir, 4)
    plan = ChangePlan(version=1, values={"batch.micro_batch": 4}, before={}, config={"batch.micro_batch": 2})
    write_plan(run_dir.settings, plan)
    EventLog(run_dir.events, "supervisor").append(LaunchAsked(1, 0))
    EventLog(run_dir.events, "trainer-001-rank0").append(SettingsApplied(1, 1, 5, ("batch.micro_batch = 4",), 100))
    start(run_dir, 2)
    with pytest.raises(UserError) as caught:
        start(run_dir, 4)
    error = caught.value
    assert error.what.startswith("BAT001: 8 sequences do not divide by batch.micro_batch 4 x")
    assert "batch.micro_batch = 4" in error.why
    assert "another batch.micro_batch in the config" in error.fix
    start(run_dir, 4, 4)  # it goes back to a step before the change, which drops it
    with pytest.raises(UserError):
        start(run_dir, 4, 5)


def test_a_second_change_is_judged_with_the_global_batch_that_the_first_has_pinned(tmp_path: Path) -> None:
    """The config names no global batch: it stays that of two processes with a micro-batch of 8."""
    run_dir = open_run(tmp_path)
    change = check(run_dir, {"batch.micro_batch": 4}, 10)
    write_plan(
        run_dir.settings, ChangePlan(version=1, values=change.values, before=change.before, config=change.config)
    )
    assert check(run_dir, {"batch.micro_batch": 8}, 10).values == {"batch.micro_batch": 8}
    with pytest.raises(UserError, match="BAT001: 16 sequences"):
        check(run_dir, {"batch.micro_batch": 16}, 10)


COMMAND = """
[run]
name = "a"
kind = "command"
[command]
argv = ["true"]
"""
SETTING = """
[[command.settings]]
name = "lr"
value = 0.1
"""


def open_command(folder: Path, settings: str = SETTING) -> RunDir:
    run_dir = RunDir(folder / "a")
    run_dir.path.mkdir()
    write_config(run_dir, COMMAND + settings)
    return run_dir


def test_a_command_changes_its_own_settings_and_those_of_its_supervisor(tmp_path: Path) -> None:
    run_dir = open_command(tmp_path)
    change = check(run_dir, {"lr": 0.2, "prime_train.instability.policy": "auto", "prime_train.budget_usd": 9}, 10)
    assert change.values == {"lr": 0.2, "prime_train.instability.policy": "auto", "prime_train.budget_usd": 9.0}
    assert change.before == {"lr": 0.1, "prime_train.instability.policy": "propose", "prime_train.budget_usd": None}
    assert change.config == {"prime_train.instability.policy": "propose", "prime_train.budget_usd": None}
    plan = ChangePlan(version=1, values=change.values, before=change.before, config=change.config)
    write_plan(run_dir.settings, plan)
    _, present = read_present(run_dir)
    assert (present.prime_train.instability.policy, present.prime_train.budget_usd) == ("auto", 9.0)
    assert check(run_dir, {"lr": 0.3}, 10).before == {"lr": 0.2}


@pytest.mark.parametrize(
    ("settings", "values", "what"),
    [
        ("", {"optim.lr": 0.1}, "the settings of a do not change live"),
        ("", {"lr": 0.1}, "the settings of a do not change live"),
        ("", {"prime_train.instability.factor": 2}, "prime_train.instability.factor = 2 is not > 0 and < 1"),
        (SETTING, {"prime_train.stop_grace_s": 2}, "prime_train.stop_grace_s does not change while the run trains"),
        (SETTING, {"lr": 0.2, "prime_train.instability.polcy": "off"}, "there is no key prime_train.instability.polcy"),
    ],
)
def test_a_command_refuses_what_neither_takes(tmp_path: Path, settings: str, values: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError) as caught:
        check(open_command(tmp_path, settings), values, 10)
    assert what in caught.value.what
    assert all(caught.value.parts()[part] for part in ("what", "where", "why", "fix"))


PRIME_RL = """
[prime_train]
prime_rl = "2026-01"
[model]
name = "x/y"
[orchestrator]
[[orchestrator.env]]
id = "a"
[trainer]
[inference]
"""


def test_a_run_of_prime_rl_changes_the_settings_of_its_supervisor(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "a")
    run_dir.path.mkdir()
    found = detect.read(PRIME_RL, "rl.toml").run
    assert found is not None
    run_dir.config.write_text(PRIME_RL)
    run_dir.resolved.write_text(to_json(found))
    change = check(run_dir, {"prime_train.heartbeat.step_limit_s": 60}, 0)
    assert change.texts == ("prime_train.heartbeat.step_limit_s = 60.0, was unset",)
    with pytest.raises(UserError, match="the settings of a do not change live"):
        check(run_dir, {"optim.lr": 0.1}, 0)


@pytest.mark.parametrize(("before", "value"), [(0, 4), (4, 0)])
def test_replicas_begin_or_end_to_make_steps_alone_only_with_another_attempt(
    before: int, value: int, tmp_path: Path
) -> None:
    run_dir = open_run(tmp_path, layout=f"replicas = 2\nsync_every = {before}")
    with pytest.raises(UserError, match=r"parallel\.sync_every (is|=) 0"):
        check(run_dir, {"parallel.sync_every": value}, 10)


def test_the_length_of_a_round_changes_live(tmp_path: Path) -> None:
    run_dir = open_run(tmp_path, layout="replicas = 2\nsync_every = 10")
    assert check(run_dir, {"parallel.sync_every": 20}, 10).values == {"parallel.sync_every": 20}
