"""Real trainers of other projects under supervision: a run that meets many faults ends as a run without any.

Each trainer gets two of the harms to its processes, each harm comes to three trainers or more, and every trainer gets
what ends a supervisor. `python -m tests.drills.trainer_faults PYTHON` gives every fault to every trainer.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.drills.trainer_faults import FAULTS, HARMS, Trial, build_library
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
def test_a_run_with_faults_ends_as_a_run_without(script: TrainerScript, tmp_path: Path, library: Path) -> None:
    trial = Trial(script, find_interpreter(script.module), tmp_path, library)
    first = SCRIPTS.index(script)
    harms = {HARMS[(first + more) % len(HARMS)] for more in (0, 2)}
    whole, last = trial.train_whole(), trial.live([*harms])
    assert [one.fault for one in trial.followed] == [one for one in FAULTS if one in harms or one not in HARMS]
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
