"""Chooses a config for forty combinations, and compares its speed with the fastest of a grid search.

    python bench/init.py

The grid has layouts, recomputation, micro-batches, GPUs of the engine and its part of a shared GPU, over the same
estimator and for the same training: as many sequences of the same length, and the same adapter. It needs no head-room,
so `slower` also holds what a tenth of free memory costs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import record

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the combinations are those of the tests

from tests.unit.choose.combinations import COMBINATIONS, choose_for, find_fastest

from prime_train.facts.facts import Facts
from prime_train.facts.host import parse_gpus
from prime_train.rules import judge

MOST_SLOWER = 0.15


def main() -> None:
    slower, choosing_s, clean, fitting = [], [], 0, 0
    for combination in COMBINATIONS:
        start_s = time.process_time()
        wishes, chosen = choose_for(combination)
        choosing_s.append(time.process_time() - start_s)
        run, timed = chosen.reading.run, chosen.estimate.time
        assert run is not None
        assert timed is not None
        verdict = judge.judge(chosen.reading, Facts(gpus=parse_gpus(combination.gpus)))
        clean += not (verdict.findings or judge.lint(chosen.text, "run.toml").findings)
        fitting += chosen.estimate.fits
        slower.append(timed.step_s.typical / find_fastest(wishes, run, is_fine=True) - 1)
        print(f"{' '.join(combination):60} {slower[-1]:6.1%} slower than the grid", flush=True)
    unit = "share of the time of a step"
    rows = [
        record.emit("slower than the fastest of a grid", slower, unit=unit, worst=round(max(slower), 4)),
        record.emit("choosing a config", choosing_s, unit="CPU s", worst=round(max(choosing_s), 2)),
        record.emit("clean under lint and validate --gpus", [clean], unit=f"of {len(COMBINATIONS)}"),
        record.emit("fit by the upper bound", [fitting], unit=f"of {len(COMBINATIONS)}"),
    ]
    record.write("init", rows)
    if max(slower) > MOST_SLOWER or min(clean, fitting) < len(COMBINATIONS):
        raise SystemExit("a combination misses the bar")


if __name__ == "__main__":
    main()
