"""Real trainers that are killed during their saves: no broken checkpoint counts, and each run gets to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.save_kills import kill_saves, start
from tests.system.live.trainers import find_interpreter

pytestmark = pytest.mark.trainers
_KILLS = 5


@pytest.mark.timeout(900)  # a life of a trainer takes seconds, and there are six of them
@pytest.mark.parametrize(("kind", "package"), [("hf", "transformers"), ("lightning", "lightning")])
def test_no_broken_checkpoint_is_complete_or_keeps_a_run_from_its_end(kind: str, package: str, tmp_path: Path) -> None:
    with start(find_interpreter(package), kind) as trainers:
        counts = kill_saves(trainers, _KILLS, 1, tmp_path / "runs", tmp_path / "tmp")
    assert (counts.kills, counts.runs) == (_KILLS, 1)
    assert (counts.wrongly_complete, counts.resumed_from_broken, counts.stuck) == (0, 0, 0)
