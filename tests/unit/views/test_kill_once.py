"""docs/kill_once.py, which `make demo KILL=1` starts beside a run."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.events import ChildStarted, LogNoticed, Progress, read
from prime_train.supervise.core.event_text import describe
from tests.unit.views.written_runs import FIRST_ATTEMPT, write_run

SCRIPT = Path(__file__).parents[3] / "docs" / "kill_once.py"


def test_a_planned_kill_is_an_event_of_the_run_and_nothing_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        child = ChildStarted(1, "trainer", victim.pid, 1, "/nowhere/trainer.log")
        timeline = (*FIRST_ATTEMPT[:2], (0.2, "supervisor", child), *FIRST_ATTEMPT[3:])
        late = (11.0, "trainer-001-rank0", Progress(1, 70, 5.0, 4000.0, 1))
        run_dir = write_run(tmp_path / "runs" / "small", (*timeline, late))
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(SCRIPT))["main"]("small")
        assert victim.wait(30) == -9
    (noticed,) = (record.event for record in read(run_dir.events) if isinstance(record.event, LogNoticed))
    assert describe(noticed) == f"kill -9 {victim.pid}, on purpose, at step 70"
    assert capfd.readouterr() == ("", "")
