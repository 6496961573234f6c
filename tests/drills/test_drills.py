"""Every fault costs the steps since a checkpoint and nothing else; the report says what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prime_train.events import AttemptEnded, LaunchAsked, read
from tests.drills import faults
from tests.drills.faults import INTERVAL_STEPS, MAX_STEPS, drill_in
from tests.drills.scene import DEADLINE_S, Scene

pytestmark = pytest.mark.slow

# What report.md must say of each fault.
TOLD: dict[faults.Fault, tuple[str, ...]] = {
    faults.kill_trainer: ("killed by signal 9 (SIGKILL)",),
    faults.raise_in_trainer: ("data worker 0 ended with exit code -9",),
    faults.hang_trainer: ("no sign of life for", "in phase train; the limit is 6 s"),
    faults.truncate_newest: ("killed by signal 9 (SIGKILL)", "Newer checkpoints were not taken: `step_"),
    faults.kill_supervisor: ("it ended together with its supervisor",),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[dict[str, Any]]:
    """metrics.jsonl of the same run without a fault."""
    drill = drill_in(tmp_path_factory.mktemp("undisturbed") / "here", cache)
    drill.prepare()
    with drill.started() as process:
        assert process.wait(DEADLINE_S) == 0, drill.said()
    return drill.metrics()


@pytest.mark.parametrize("fault", faults.FAULTS.values(), ids=faults.FAULTS)
def test_a_run_survives(fault: faults.Fault, tmp_path: Path, cache: Path, undisturbed: list[dict[str, Any]]) -> None:
    drill = drill_in(tmp_path / "here", cache)
    drill.prepare()
    with drill.started() as process:
        fault(drill, process.pid)
        if fault is not faults.kill_supervisor:
            assert process.wait(DEADLINE_S) == 0, drill.said()
    if fault is faults.kill_supervisor:
        with drill.started() as process:
            assert process.wait(DEADLINE_S) == 0, drill.said()

    _goes_on_from_the_newest_complete_checkpoint(drill)
    assert [line["step"] for line in drill.metrics()] == list(range(1, MAX_STEPS + 1))
    for name in ("loss", "grad_norm", "tokens_seen"):
        assert [line[name] for line in drill.metrics()] == [line[name] for line in undisturbed], name
    report = drill.run_dir.report.read_text(encoding="utf-8")
    for words in (*TOLD[fault], "**finished**"):
        assert words in report
    assert drill.left() == []


def _goes_on_from_the_newest_complete_checkpoint(drill: Scene) -> None:
    events = [record.event for record in read(drill.run_dir.events)]
    ended = next(event for event in events if isinstance(event, AttemptEnded))
    first, second = (event for event in events if isinstance(event, LaunchAsked))
    assert ended.outcome == "failed"
    assert (first.resume_step, second.resume_step) == (0, ended.newest_complete)
    assert ended.newest_complete >= INTERVAL_STEPS
    assert ended.newest_complete % INTERVAL_STEPS == 0
    for rejected in second.rejected:  # a save that was cut short, or one that was truncated
        assert int(rejected.split(":")[0].removeprefix("step_")) > second.resume_step
