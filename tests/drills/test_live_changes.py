"""Changes that reach one rank later than the other, with kills between. More by hand: `tests.drills.live_changes`."""

from __future__ import annotations

from pathlib import Path

from tests.drills.live_changes import change_runs

_SEEDS = 2


def test_both_ranks_change_at_the_same_step_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    counts = change_runs(1, _SEEDS, tmp_path)
    assert (counts.seeds, counts.kills > 0) == (_SEEDS, True)
    assert (counts.different_steps, counts.different_weights, counts.different_metrics) == (0, 0, 0), counts.seen
