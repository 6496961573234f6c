"""Real trainers that are killed during their saves; PRIME_TRAIN_TEST_TRAINERS names a Python with their packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.drills.save_kills import kill_saves, start

_KILLS = 5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["hf", "lightning"])
def test_no_broken_checkpoint_is_complete_or_keeps_a_run_from_its_end(kind: str, tmp_path: Path) -> None:
    python = os.environ.get("PRIME_TRAIN_TEST_TRAINERS")
    if not python:
        pytest.skip("PRIME_TRAIN_TEST_TRAINERS names no Python with transformers and lightning")
    with start(python, kind) as trainers:
        counts = kill_saves(trainers, _KILLS, 1, tmp_path / "runs", tmp_path / "tmp")
    assert counts.kills == _KILLS
    assert counts.runs == 1
    assert (counts.wrongly_complete, counts.resumed_from_broken, counts.stuck) == (0, 0, 0)
