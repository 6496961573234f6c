"""Measures how much `estimate --calibrate` improves: each row is calibrated by every other row of its model and mode.

    python bench/calibrate_memory.py --rows FILE [--write]

Pairs are grouped by the ratio of their estimates. The rows come from prime-rl's benchmarks.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import record
from memory_rows import Row, read

from prime_train.core.units import GIB
from prime_train.estimate.calibrate import MeasuredRun, calibrate_memory, calibration_of
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.values import RoleMemory

FACTORS = (1.1, 1.5, 2.0, 4.0, math.inf)


class Estimated(NamedTuple):
    """A row, its estimate, and the properties by which rows are compared."""

    row: Row
    memory: RoleMemory
    alike: tuple[Any, ...]

    @property
    def peak_bytes(self) -> float:
        assert self.row.measured_gib is not None
        return self.row.measured_gib * GIB


class Pair(NamedTuple):
    """One row calibrated by another: errors before and after, whether the interval covers the row, and its width."""

    apart: float
    before: float
    after: float
    holds: bool
    width: float
    width_before: float


def estimated(row: Row) -> Estimated:
    setup = setup_of(row.run, row.hardware, row.shape)
    mode = (setup.adapter is not None, setup.checkpointing, setup.offload, setup.head.kind)
    return Estimated(row, training_memory(setup, row.hardware), (row.shape.name, setup.era, *mode))


def pairs(rows: list[Estimated]) -> Iterator[Pair]:
    """Every row calibrated by every other comparable row."""
    alike = defaultdict(list)
    for row in rows:
        alike[row.alike].append(row)
    for group in alike.values():
        yield from (pair(by, of) for by, of in permutations(group, 2))


def pair(by: Estimated, of: Estimated) -> Pair:
    measured = MeasuredRun(by.peak_bytes, True, (), by.row.id)
    after = calibrate_memory(of.memory, calibration_of(measured, by.memory, None)).reserved
    before, truth = of.memory.reserved, of.peak_bytes
    return Pair(
        apart=math.exp(abs(math.log(before.typical / by.memory.reserved.typical))),
        before=abs(before.typical / truth - 1),
        after=abs(after.typical / truth - 1),
        holds=after.low <= truth <= after.high,
        width=(after.high - after.low) / after.typical,
        width_before=(before.high - before.low) / before.typical,
    )


def summary(found: list[Pair]) -> Iterator[dict[str, Any]]:
    below = 1.0
    for factor in FACTORS:
        within = [pair for pair in found if below <= pair.apart < factor]
        if within:
            yield {
                "apart": f"{below:g} to {factor:g} times" if factor < math.inf else f"more than {below:g} times",
                "n": len(within),
                "mean_error": round(statistics.mean(pair.after for pair in within), 4),
                "mean_error_before": round(statistics.mean(pair.before for pair in within), 4),
                "held": round(statistics.mean(pair.holds for pair in within), 3),
                "mean_width": round(statistics.mean(pair.width for pair in within), 3),
                "mean_width_before": round(statistics.mean(pair.width_before for pair in within), 3),
            }
        below = factor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a table of measured rows, CSV")
    parser.add_argument("--write", action="store_true", help="write bench/results/calibrate_memory.json")
    options = parser.parse_args()
    rows = [estimated(row) for row in read(options.rows)[0] if row.group == "prime-rl" and row.measured_gib]
    lines = list(summary(list(pairs(rows))))
    for line in lines:
        print(line)
    if options.write:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        about = {"rows": options.rows.name, "machine": record.machine(), "commit": record.commit(), "date": date}
        print(record.write("calibrate_memory", [{**line, **about} for line in lines]))


if __name__ == "__main__":
    main()
