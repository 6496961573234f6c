"""Runs that do not fit fit after their first advice, and are then nearly as fast as any setting of a grid that fits."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_the_first_advice_followed_is_near_the_fastest_of_a_grid() -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from advice import MOST_SLOWER, MOST_STEPS, cases, follow
    finally:
        sys.path.pop(0)
    runs = list(cases())
    assert len(runs) == 30
    for name, run, fit_of, _ in runs:
        assert not fit_of(run).fits, name
    for case in runs[::7]:
        found = follow(*case)
        assert found.steps is not None, found.name
        assert 1 <= found.steps <= MOST_STEPS
        assert found.speed is not None
        assert found.speed >= 1 - MOST_SLOWER, found
