from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from prime_train.estimate.cost.run_cost import InterruptedRun
from prime_train.estimate.spot.advice import SpotSaves
from prime_train.estimate.spot.interval import Advice, Saves
from prime_train.estimate.spot.simulate import SpotRun, Tally
from prime_train.estimate.values import Interval
from prime_train.views import spot
from prime_train.views.spot import Row, Shown
from tests.golden import same_as_golden

_SAVES = Saves(12.0, 60.0)
_DONE = Tally(
    1000, 0.98, 0.02, 0.0, Interval(11.0, 12.0, 14.0), Interval(180.0, 190.0, 210.0), 191.5, 0.7, 3.2, 0.061, 5.5
)
_HOPELESS = Tally(1000, 0.0, 1.0, 0.0, None, None, 40.0, 10.0, 9.0, 0.9, 30.0)
SHOWN = Shown(
    SpotRun(36_000.0, 576.0, _SAVES, 600.0, 16.0),
    (
        Row(64, 576.0, _DONE, InterruptedRun(39_000.0, 3.0, 2_200.0)),
        Row(4000, 36_000.0, _HOPELESS, InterruptedRun(math.inf, math.inf, math.inf)),
    ),
    SpotSaves(Advice(576.0, 64, 588.0, "daly"), 128, 4000, math.inf, _SAVES, 0.25, True),
    "6 interruptions a day, exponential",
    "4,000 steps of 9.0 s",
)


def test_json() -> None:
    document = spot.as_json(SHOWN)
    same_as_golden("simulate_spot.json", document)
    json.dumps(document, allow_nan=False)


def test_rows() -> None:
    first, second = spot.rows(SHOWN)
    assert first == (
        *("9 min 36 s *", "64", "98%", "2%"),
        *("12 h 00 min (11 h 00 min - 14 h 00 min)", "$190 ($180 - $210)", "6.1%", "5.6%"),
    )
    assert second == ("10 h 00 min", "4,000", "0%", "100%", "-", "-", "90.0%", "100.0%")


def test_the_longest_time_without_a_checkpoint_is_that_of_all_rows() -> None:
    assert any("1 d 6 h" in note for note in spot.notes(SHOWN))


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_plot_is_a_file_of_its_suffix(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"spot{suffix}"
    spot.draw(SHOWN, path)
    assert path.read_bytes().startswith(start)
