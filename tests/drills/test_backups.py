"""Kills at random moments on a real S3 server that also fails calls; bench/backup_drills.py does 200 of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

from tests.drills import backup_drill


@pytest.mark.spread
@pytest.mark.timeout(900)  # fifteen drills of several processes each
@pytest.mark.parametrize("first_seed", [1000, 2000])
def test_no_complete_backup_is_lost_and_no_part_is_taken_for_one(tmp_path: Path, first_seed: int) -> None:
    tally = backup_drill.run_series(first_seed, 15, tmp_path)
    assert tally.ok, tally
