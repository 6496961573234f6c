"""Real trainers of other projects under supervision: one run that meets every fault ends as a run without any."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.drills.trainer_faults import FAULTS, Trial, build_library
from tests.system.live.trainers import find_interpreter
from tests.system.programs.command.commands import list_marked, read_json
from tests.system.programs.command.scripts import EVERY, SCRIPTS, STEPS, TrainerScript

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("cut"))


@pytest.mark.timeout(1800)
@pytest.mark.spread
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_run_with_every_fault_ends_as_a_run_without(script: TrainerScript, tmp_path: Path, library: Path) -> None:
    trial = Trial(script, find_interpreter(script.module), tmp_path, library)
    whole, last = trial.train_whole(), trial.live()
    assert [one.fault for one in trial.followed] == list(FAULTS)
    for one in trial.followed:
        cause, cut = FAULTS[one.fault]
        assert one.cause == (script.after_sigterm if one.fault == "foreign SIGTERM" else cause), one
        # From the newest whole checkpoint: the save of a step is over when the next step is made.
        assert (one.last_step - 1) // EVERY - cut <= one.resumed_from // EVERY, one
        assert one.resumed_from <= one.last_step, one
        assert one.resumed_from == one.named, one
    assert last == whole
    name = trial.run_dir.path.name
    status = read_json(trial.work, "status", name)
    assert (status["state"], status["step"]) == ("finished", STEPS)
    assert not list_marked(trial.run_dir)
