"""Judges the estimate of memory on measured rows, beside other tools: error, leave one model out, cover of the bound.

    python bench/estimate_memory.py [--rows FILE] [--report FILE] [--quick] [--alone]

Each row becomes an ordinary RunSpec, hardware and model and goes through setup_of and training_memory, which never
see what was measured. --quick leaves out the fits without each model, --alone the other tools. Rows of kind "vllm"
are judged by tokens and weights, those of the published start-up logs too.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fit_memory
import record
from memory_priors import PRIORS
from memory_rows import DEVELOPMENT, Row, read
from memory_served import pairs, servers
from memory_tools import Tool, tools

from prime_train.estimate.setup import setup_of
from prime_train.estimate.training import training_memory
from prime_train.estimate.values import Interval
from prime_train.units import GIB

# mean, median, within 10 %, left out mean: what is asked of each group
BARS = {
    "prime-rl": "mean <= 5 %, left out <= 8 %, within 10 % >= 90 %",
    "other trainers": "mean <= 12 %, median <= 8 %",
}
VLLM_BAR = "weights mean <= 2 %, KV tokens mean <= 2 %"
ALL_ROWS_BAR = "bound above the measurement in >= 95 % of rows, over it by <= 15 % in the median"
REPORT_COLUMNS = ("row", "measured", "estimated", "low", "high", "unit", "group", "program", "phase")


class Judged(NamedTuple):
    """One row, what is estimated of it, and what the other tools say. Bytes on one GPU."""

    row: Row
    estimate: Interval
    phase: str
    others: tuple[float | None, ...]

    @property
    def measured(self) -> float:
        return self.row.measured_gib * GIB


def judge(row: Row, others: Sequence[Tool]) -> Judged:
    setup = setup_of(row.run, row.hardware, row.shape)
    memory = training_memory(setup, row.hardware)
    return Judged(row, memory.reserved, memory.phase, tuple(tool.bytes_of(setup) for tool in others))


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of (estimated, measured): mean, median, p90 and worst error, and how many are within 10 %."""
    off = [abs(estimated / measured - 1) for estimated, measured in pairs]
    return {
        "mean": statistics.mean(off),
        "median": statistics.median(off),
        "p90": record.percentile(off, 0.9),
        "worst": max(off),
        "within_10_percent": sum(each <= 0.1 for each in off) / len(off),
    }


def bound(judged: Sequence[Judged]) -> dict[str, float]:
    over = [each.estimate.high / each.measured - 1 for each in judged]
    return {"bound_above": sum(each >= 0 for each in over) / len(over), "bound_over_median": statistics.median(over)}


def left_out(rows: Sequence[Row]) -> dict[str, float]:
    """Row id -> log(estimate / measured) by a fit that saw no row of the row's model."""
    found: dict[str, float] = {}
    for name in sorted({row.program for row in rows} & PRIORS.keys()):
        priors, chosen = PRIORS[name], [row for row in rows if row.program == name]
        seen = fit_memory.samples(chosen)
        start = fit_memory.fit(seen, priors.free, priors.fixed).values
        errors = fit_memory.without_each_model(seen, priors.free, priors.fixed, start)
        found.update(zip((row.id for row in chosen), map(float, errors), strict=True))
    return found


def table(judged: Sequence[Judged], unseen: dict[str, float], others: Sequence[Tool]) -> list[dict[str, Any]]:
    """One line per group and method."""
    lines: list[dict[str, Any]] = []
    programs = sorted({each.row.program for each in judged if each.row.group != "prime-rl"})
    groups = [(group, [each for each in judged if each.row.group == group]) for group in BARS]
    groups += [(name, [each for each in judged if each.row.program == name]) for name in programs]
    groups.append(("all", list(judged)))
    for group, members in groups:
        if not members:
            continue
        ours = [(each.estimate.typical, each.measured) for each in members]
        lines.append({"group": group, "by": "prime-train", "n": len(ours), **errors(ours), **bound(members)})
        held = [(math.exp(unseen[each.row.id]), 1.0) for each in members if each.row.id in unseen]
        if held:
            lines.append({"group": group, "by": "prime-train, model left out", "n": len(held), **errors(held)})
        for number, tool in enumerate(others):
            said = [(each.others[number], each.measured) for each in members]
            told = [(estimated, measured) for estimated, measured in said if estimated is not None]
            if told:
                lines.append({"group": group, "by": tool.name, "n": len(told), **errors(told)})
                same = [pair for pair, (estimated, _) in zip(ours, said, strict=True) if estimated is not None]
                lines.append({"group": group, "by": "  prime-train on these rows", "n": len(same), **errors(same)})
    return lines


def write_report(judged: Sequence[Judged], path: Path) -> None:
    """One line per row, whole or not at all."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(REPORT_COLUMNS)
        for each in judged:
            low, typical, high = (f"{value / GIB:.4f}" for value in each.estimate)
            row = each.row
            measured = f"{row.measured_gib:.4f}"
            out.writerow([row.id, measured, typical, low, high, "GiB", row.group, row.program, each.phase])
    beside.replace(path)


def show(lines: Sequence[dict[str, Any]]) -> None:
    heads = "".join(f"{name:>8}" for name in ("mean", "median", "p90", "worst"))
    print(f"{'group':16}{'by':56}{'n':>4}{heads}{'<10 %':>7}{'above':>7}{'over':>7}")
    for line in lines:
        cells = [f"{line[key]:>8.1%}" for key in ("mean", "median", "p90", "worst")]
        cells.append(f"{line['within_10_percent']:>7.0%}")
        if "bound_above" in line:
            cells += [f"{line['bound_above']:>7.1%}", f"{line['bound_over_median']:>7.1%}"]
        print(f"{line['group']:16}{line['by']:56}{line['n']:>4}{''.join(cells)}")
    bars = {**BARS, "all rows": ALL_ROWS_BAR, "vLLM": VLLM_BAR}
    print("\n".join(f"asked of {group}: {bar}" for group, bar in bars.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=DEVELOPMENT, help="a table of measured rows, CSV")
    parser.add_argument("--report", type=Path, help="write one line per row here, CSV")
    parser.add_argument("--quick", action="store_true", help="no fits without each model")
    parser.add_argument("--alone", action="store_true", help="no other tools: they import torch")
    parser.add_argument("--write", action="store_true", help="write bench/results/estimate_memory.json")
    asked = parser.parse_args()
    rows, skipped = read(asked.rows)
    for id, why in skipped:
        print(f"left out: {id}: {why}")
    others = () if asked.alone else tools()
    judged = [judge(row, others) for row in rows]
    lines = table(judged, {} if asked.quick else left_out(rows), others)
    lines += [
        {"group": "vLLM", "by": name, "n": len(told), **errors(told)}
        for name, told in pairs(servers(asked.rows)).items()
    ]
    show(lines)
    if asked.report:
        write_report(judged, asked.report)
    if asked.write:
        about = {
            "machine": record.machine(),
            "commit": record.commit(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        rounded = [
            {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}
            for line in lines
        ]
        print(record.write("estimate_memory", [{**line, "rows": asked.rows.name, **about} for line in rounded]))


if __name__ == "__main__":
    main()
