"""A plain script of two ranks trains on images; its rate and its batch size are changed from the page meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prime_train.events import SettingsApplied
from prime_train.views.run.status import fold_events
from tests.system.control.served import Served, serve
from tests.system.programs.command.commands import TORCHRUN, Supervised
from tests.unit.cli.commands import prime_train, wait_until

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def start(folder: Path) -> Supervised:
    """The example, with its script beside its config and enough steps for the test."""
    shutil.copy(EXAMPLES / "digits.py", folder)
    text = (EXAMPLES / "digits.toml").read_text()
    command = json.dumps([TORCHRUN, "--nproc-per-node", "2", "digits.py", "100000", "0.02"])
    line = next(line for line in text.splitlines() if line.startswith("argv"))
    (folder / "digits.toml").write_text(text.replace(line, f"argv = {command}"))
    return Supervised(folder, "digits.toml")


def change(served: Served, expected: int, **values: float) -> None:
    body = {"values": values, "expected": expected, "by": "the page", "why": "the loss is flat"}
    answer = served.send({"run": "digits", "kind": "settings_requested", "body": body})
    assert (answer.status, answer.document["outcome"]) == (200, "accepted"), answer.text


def rows(folder: Path, rank: int) -> dict[int, dict[str, Any]]:
    lines = (folder / f"digits-rank{rank}.jsonl").read_text().splitlines()
    return {row["step"]: row for row in map(json.loads, lines)}


def changes(detail: dict[str, Any]) -> list[tuple[int, int]]:
    """The version and the first step of each change that the page shows."""
    shown = [entry for entry in detail["entries"] if entry["kind"] == SettingsApplied.kind]
    return [(one["details"]["version"], one["step"]) for one in shown]


def shown_changes(served: Served) -> list[tuple[int, int]]:
    return changes(served.get("/api/run?name=digits").document)


def test_rate_and_batch_change_at_the_same_step_of_both_ranks_and_the_page_shows_it(tmp_path: Path) -> None:
    supervised = start(tmp_path)
    try:
        run_dir = supervised.run_dir
        wait_until(lambda: fold_events(run_dir).step > 0)
        with serve(tmp_path) as served:
            change(served, 0, lr=0.02)
            wait_until(lambda: len(fold_events(run_dir).settings_applied) == 1)
            change(served, 1, lr=0.05, batch_size=64)
            wait_until(lambda: len(fold_events(run_dir).settings_applied) == 2)
            applied = dict(fold_events(run_dir).settings_applied)
            wait_until(lambda: fold_events(run_dir).step > applied[2] + 5)
            wait_until(lambda: len(shown_changes(served)) == 2)  # the page reads the events after the run wrote them
            detail = served.get("/api/run?name=digits").document
        stopped = prime_train("stop", "digits", cwd=tmp_path)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert (stopped.returncode, code) == (0, 75), err
    first, second = rows(tmp_path, 0), rows(tmp_path, 1)
    assert {step: (row["lr"], row["images"]) for step, row in first.items()} == {
        step: (row["lr"], row["images"]) for step, row in second.items()
    }
    for step, row in first.items():
        wanted = (0.05, 32) if step >= applied[2] else (0.02 if step >= applied[1] else 0.1, 16)
        assert (row["lr"], row["images"]) == wanted, step
    # The page has the versions, the steps from which they are in force, and the curve of the loss beside them.
    assert [one["values"] for one in detail["settings"]] == [{"lr": 0.02}, {"lr": 0.05, "batch_size": 64}]
    assert changes(detail) == [(1, applied[1]), (2, applied[2])]
    assert detail["curves"]["loss"]
    losses = [row["loss"] for row in first.values()]
    assert sum(losses[-20:]) < sum(losses[:20])
