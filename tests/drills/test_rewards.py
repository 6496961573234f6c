"""The faults of the table that strike a run that learns from rewards."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prime_train.events import AttemptEnded, RolloutsFailed, TasksEvaluated, read
from tests.drills import rows_rewards
from tests.drills.drill import Row, carry_out, check
from tests.drills.rewards import MAX_STEPS, drill_of_rewards, drill_of_served_tasks
from tests.drills.scene import DEADLINE_S, PROGRAM

pytestmark = [pytest.mark.timeout(600)]

# Equal in two runs with one seed. mismatch_kl is not: it compares the rollouts that happen to be finished.
_EXACT = ("loss", "grad_norm", "tokens_seen", "reward", "reward_std", "answer_tokens", "entropy", "behind_kl")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[dict[str, Any]]:
    """metrics.jsonl of the same run without a fault. The stand-in for vLLM generates with the local engine, too."""
    drill = drill_of_rewards(tmp_path_factory.mktemp("undisturbed") / "here", cache, {}, {})
    drill.prepare()
    with drill.started() as process:
        assert process.wait(DEADLINE_S) == 0, drill.log_text()
    return drill.metrics()


def _of(group: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "row", [row for row in rows_rewards.ROWS if row.group == group], ids=lambda row: row.name
    )


@_of(rows_rewards.GOES_ON)
def test_a_fault_costs_the_steps_since_a_checkpoint_and_nothing_else(
    row: Row, tmp_path: Path, cache: Path, undisturbed: list[dict[str, Any]]
) -> None:
    check(row, carry_out(row, tmp_path / "here", cache))
    metrics = row.scene(tmp_path / "here", cache).metrics()
    assert [line["step"] for line in metrics] == list(range(1, MAX_STEPS + 1))
    for name in _EXACT:
        assert [line.get(name) for line in metrics] == [line.get(name) for line in undisturbed], name


@pytest.mark.spread
@_of(rows_rewards.ENVIRONMENT)
def test_a_fault_of_an_environment(row: Row, tmp_path: Path, cache: Path) -> None:
    check(row, carry_out(row, tmp_path / "here", cache))
    run_dir = row.scene(tmp_path / "here", cache).run_dir
    failed = [record.event for record in read(run_dir.events) if isinstance(record.event, RolloutsFailed)]
    fails_itself = "long" not in row.options["taskset"] and row.options["taskset"] not in ("zero", "ends_once")
    assert bool(failed) == fails_itself
    if "raises" in row.options["taskset"]:
        assert "harmful.py" in failed[0].traceback


def test_a_server_that_dies_in_an_evaluation_of_a_pretraining_is_started_again(tmp_path: Path, cache: Path) -> None:
    """Each evaluation has four tasks, so the sixth answer is in the last one."""
    scene = drill_of_served_tasks(tmp_path / "here", cache, "dies 6")
    scene.prepare()
    with scene.started() as process:
        assert process.wait(DEADLINE_S) == 0, scene.log_text()
    events = [record.event for record in read(scene.run_dir.events)]
    ended = [(event.outcome, event.cause_class) for event in events if isinstance(event, AttemptEnded)]
    assert ended == [("failed", "signal"), ("finished", "")]
    assert [event.step for event in events if isinstance(event, TasksEvaluated)] == [4, 8]
    assert scene.state().task_scores[0].step == 8


def test_validate_finds_prompts_that_do_not_fit(tmp_path: Path, cache: Path) -> None:
    scene = drill_of_rewards(tmp_path / "here", cache, {}, {})
    scene.prepare()
    config = scene.files["run.toml"].replace("ctx_tokens = 64", "ctx_tokens = 8")
    (scene.folder / "run.toml").write_text(config, encoding="utf-8")
    done = subprocess.run(
        [PROGRAM, "validate", "run.toml", "--json"], cwd=scene.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    (file,) = json.loads(done.stdout)["files"]
    assert "LEN010" in [finding["code"] for finding in file["findings"] if finding["severity"] == "error"]
