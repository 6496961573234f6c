"""The bus of a training, and of the machines of one, is disturbed. Longer by hand: `bus_cuts`, `machine_cuts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills import bus_cuts, machine_cuts
from tests.drills.networks import can_make_networks

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
pytest.importorskip("nats", reason="the extra `control` is not installed")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and iproute2"),
]


def test_a_disturbed_bus_loses_and_doubles_nothing_and_the_page_stays(tmp_path: Path) -> None:
    """No step is timed here, because other tests share the processors."""
    counts = bus_cuts.run(str(tmp_path / "drill"), "--quiet-s", "4", "--cut-s", "12")
    assert [window.kind for window in counts.windows[1::2]] == list(bus_cuts.KINDS)
    assert all(window.steps > 0 for window in counts.windows), counts
    [cut] = [window for window in counts.windows if window.kind == "network cut"]
    assert [one.partition(" ")[2] for one in cut.seen] == ["live", "unknown"], "after 10 s, and not lost"
    assert counts.events > 50
    first, second = sorted(counts.editors)
    assert (first.startswith("accepted: "), second.startswith("refused: ")) == (True, True), counts.editors
    assert "set optim.lr = " in second, "the second editor sees the change of the first"
    assert (counts.lost, counts.doubled, counts.commands_lost, counts.commands_twice) == (0, 0, [], []), counts
    assert (counts.failures, counts.page_differs, counts.left) == (0, [], [])


@pytest.mark.parametrize("cut_s", [0.0, 12.0], ids=["server killed", "network cut"])
def test_two_machines_train_on_over_a_disturbed_bus(tmp_path: Path, cut_s: float) -> None:
    counts = machine_cuts.disturb(tmp_path, cut_s)
    assert (counts.ends, counts.codes, counts.different_weights) == (["finished: "], [0, 0], 0), counts
    assert counts.left == []
    assert counts.kills == (0 if cut_s else 3)
