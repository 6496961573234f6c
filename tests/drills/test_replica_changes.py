"""Two replicas that become one and two again, under a change or with a batch that follows. More: `replica_changes`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.drills.replica_batches import RAMP_STEPS, scale_replicas
from tests.drills.replica_changes import change_replicas

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
pytestmark = pytest.mark.timeout(600)


def test_the_batch_stays_and_each_row_has_its_version_while_a_replica_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    found = change_replicas(0, 1, tmp_path, 50)
    assert found.alone > 0
    assert found.changed > 0
    assert (found.lost_rows, found.different_weights, found.other_batches) == (0, 0, 0), found.seen
    assert (found.other_rows, found.other_versions, found.different_tokens) == (0, 0, 0), found.seen
    assert found.different_losses == 0, found.seen


@pytest.mark.parametrize(("follows", "victims"), [("linear", (1, 0)), ("sqrt", (0, 1))])
def test_batch_and_rate_follow_the_replicas_and_a_resume_goes_on_in_the_ramp(
    follows: Literal["linear", "sqrt"], victims: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    found = scale_replicas(tmp_path, follows, victims)
    assert found.sizes.count(1) > RAMP_STEPS
    assert 0.5 < found.resumed_ratio < 1.0
    assert (found.lost_rows, found.different_weights, found.other_batches) == (0, 0, 0), found.seen
    assert (found.other_rows, found.other_tokens, found.other_rates) == (0, 0, 0), found.seen
