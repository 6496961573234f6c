"""The faults of the table that strike the bundled trainer and prime-rl, under `prime-train run`.

Those of runs that learn from rewards are in test_rewards.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from prime_train.core.rundir import write_atomic
from tests import fork_server
from tests.drills.drill import Row, carry_out, check
from tests.drills.faults import MAX_STEPS, drill_in
from tests.drills.scene import Scene
from tests.drills.table import ROWS

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[dict[str, Any]]:
    """metrics.jsonl of the same run without a fault. The first of the test processes that needs it makes it for all."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "undisturbed.json"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            drill = drill_in(tmp_path_factory.mktemp("undisturbed") / "here", cache)
            drill = replace(drill, variables={**drill.variables, **fork_server.variables()})
            drill.prepare()
            with drill.started() as process:
                assert process.wait() == 0, drill.log_text()  # the time limit is that of the test
            write_atomic(shared, json.dumps(drill.metrics()))
    metrics: list[dict[str, Any]] = json.loads(shared.read_text(encoding="utf-8"))
    return metrics


def _of(group: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [row for row in ROWS if row.group == group], ids=lambda row: row.name)


@_of("the bundled trainer")
def test_a_fault_costs_the_steps_since_a_checkpoint_and_nothing_else(
    row: Row, tmp_path: Path, cache: Path, undisturbed: list[dict[str, Any]]
) -> None:
    check(row, carry_out(row, tmp_path / "here", cache))
    drill: Scene = row.scene(tmp_path / "here", cache)
    assert [line["step"] for line in drill.metrics()] == list(range(1, MAX_STEPS + 1))
    for name in ("loss", "grad_norm", "tokens_seen"):
        assert [line[name] for line in drill.metrics()] == [line[name] for line in undisturbed], name
    assert "**finished**" in drill.run_dir.report.read_text(encoding="utf-8")


@_of("W&B")
def test_a_dead_mirror_changes_nothing(
    row: Row, tmp_path: Path, cache: Path, undisturbed: list[dict[str, Any]]
) -> None:
    pytest.importorskip("wandb")
    check(row, carry_out(row, tmp_path / "here", cache))
    drill: Scene = row.scene(tmp_path / "here", cache)
    for name in ("step", "loss", "grad_norm", "tokens_seen"):
        assert [line[name] for line in drill.metrics()] == [line[name] for line in undisturbed], name


@pytest.mark.spread
@_of("two ranks")
def test_a_fault_of_one_of_two_ranks(row: Row, tmp_path: Path, cache: Path) -> None:
    check(row, carry_out(row, tmp_path / "here", cache))


@pytest.mark.spread
@_of("prime-rl")
def test_a_fault_of_prime_rl(row: Row, tmp_path: Path, cache: Path) -> None:
    check(row, carry_out(row, tmp_path / "here", cache))


def test_no_row_is_left_out_here() -> None:
    groups = {row.group for row in ROWS if row.stage not in ("victim", "rewards")}
    assert groups == {"the bundled trainer", "two ranks", "prime-rl", "W&B"}
