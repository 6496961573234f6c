"""Evaluates the estimate of training speed on measured rows: error of tokens per second on unseen models, coverage.

    python bench/estimate_throughput.py [--rows FILE ...] [--report FILE]

Each row becomes an ordinary setup and goes through throughput_of, which never sees the measurement. "held out": rates
fitted without rows of the same model, with the interval calibrated on the other models. "source left out", "class left
out" and "trainer left out": the same without the rows of its publication, of its trainer on its class of GPUs, and of
its trainer; the interval off the rows then knows nothing of them either. "shipped": the shipped rates, "estimated" in
the report. "constant MFU", for comparison: the median MFU of the trainer's rows of other models, and 40
%. A row without a measured speed is only estimated; an unreadable row is listed with the reason.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import fit_throughput as fitting
import record
import throughput_rows
from row_cells import Unreadable
from throughput_rows import Read

from prime_train.core.errors import UserError
from prime_train.estimate.time.measured_rows import MeasuredRow, measured_rows
from prime_train.estimate.time.step_flops import work_of
from prime_train.estimate.time.step_terms import Spread, TrainerRates, gpu_class, rates_of
from prime_train.estimate.time.throughput import Throughput, throughput_of
from prime_train.estimate.values import Interval

BARS = {"llm-foundry, dense": 0.06, "prime-rl": 0.10, "torchtitan": 0.15}
MIN_OTHERS = 15  # rows of other models with which a refit means something
NAIVE_MFU = 0.40
METHODS = {"source": "source left out", "gpus": "class left out", "trainer": "trainer left out"}
REPORT_COLUMNS = (
    *("row", "measured", "estimated", "low", "high", "held_out", "held_out_low", "held_out_high"),
    *("source_left_out_low", "source_left_out_high", "trainer_left_out_low", "trainer_left_out_high", "where"),
    *("basis", "what", "reason"),
)


class Judged(NamedTuple):
    """One row: tokens per second of all GPUs, measured and estimated by each method.

    `held_out` is by model, the other parts of PARTS have the name of the part.
    """

    id: str
    row: MeasuredRow
    was_measured: bool
    shipped: Interval
    held_out: Interval
    source: Interval
    gpus: Interval
    trainer: Interval
    constant_mfu: float
    naive_mfu: float
    basis: str


def class_of(row: MeasuredRow) -> str:
    return gpu_class(row.hardware)


def trainer_of(row: MeasuredRow) -> str:
    return row.setup.trainer


# What a row of the same trainer may share with the judged one, so that it is left out with it.
PARTS: Mapping[str, fitting.Part] = {
    "held_out": fitting.model_of,
    "source": fitting.source_of,
    "gpus": class_of,
    "trainer": trainer_of,
}


def judge(lines: Sequence[Read]) -> tuple[list[Judged], dict[str, str]]:
    """The estimates, and the rows that could not be estimated: id -> reason."""
    judged, failed = [], {}
    for line in lines:
        if line.row is None:
            failed[line.id] = line.why
            continue
        try:
            judged.append(_judged(line, line.row))
        except (UserError, ArithmeticError, LookupError, ValueError) as error:
            failed[line.id] = f"no estimate: {type(error).__name__}: {error}"
    return judged, failed


def _judged(line: Read, row: MeasuredRow) -> Judged:
    trainer, model = row.setup.trainer, row.setup.shape.name
    shipped = throughput_of(row.setup, row.hardware)
    unseen = {name: _unseen(row, name) for name in PARTS}
    return Judged(
        id=line.id,
        row=row,
        was_measured=line.was_measured,
        shipped=_as_measured(row, shipped),
        **{name: _as_measured(row, speed) for name, speed in unseen.items()},
        constant_mfu=_tokens_per_s_at(row, _constant_mfu(trainer, model)),
        naive_mfu=_tokens_per_s_at(row, NAIVE_MFU),
        basis=unseen["held_out"].basis,
    )


def _unseen(row: MeasuredRow, name: str) -> Throughput:
    trainer, value = row.setup.trainer, PARTS[name](row)
    if value not in _list_values(trainer, name):
        value = ""  # no shipped row has it: all stay, and are fitted once
    rates = _rates_without(trainer, name, value)
    if name in ("gpus", "trainer"):
        rates = rates._replace(off=_off_without(trainer, name, value))
    return throughput_of(row.setup, row.hardware, rates=rates, rows=_others(trainer, name, value))


@cache
def _list_values(trainer: str, name: str) -> frozenset[str]:
    return frozenset(PARTS[name](row) for row in measured_rows() if row.setup.trainer == trainer)


@cache
def _others(trainer: str, name: str, value: str) -> tuple[MeasuredRow, ...]:
    """The shipped rows of a trainer that do not share a part."""
    return tuple(row for row in measured_rows() if row.setup.trainer == trainer and PARTS[name](row) != value)


@cache
def _rates_without(trainer: str, name: str, value: str) -> TrainerRates:
    """Rates fitted to the shipped rows of a trainer without a part, and their spreads.

    With too few rows left they are the published ones; by model, the shipped ones.
    """
    others = _others(trainer, name, value)
    if len(others) < MIN_OTHERS:
        return rates_of(trainer if name == "held_out" else "")
    rates = fitting.fit(others, rates_of(trainer).recompute_share)
    return rates._replace(spreads=fitting.spreads_of(others, rates))


@cache
def _off_without(trainer: str, name: str, value: str) -> Spread:
    """The spread of trainers without rows, from the rows of other trainers and, for a class, of its other classes."""
    same = (row for row in measured_rows() if row.setup.trainer != trainer)
    return fitting.fit_unmeasured([*same, *_others(trainer, name, value)])


@cache
def _constant_mfu(trainer: str, model: str) -> float:
    others = _others(trainer, "held_out", model)
    return statistics.median(_mfu(row) for row in others) if others else NAIVE_MFU


def _mfu(row: MeasuredRow) -> float:
    step_s = row.setup.tokens_per_step / row.tokens_per_s
    done: float = work_of(row.setup).model_flops
    return done / step_s / row.hardware.peak_flops_bf16


def _tokens_per_s_at(row: MeasuredRow, mfu: float) -> float:
    step_s: float = work_of(row.setup).model_flops / (mfu * row.hardware.peak_flops_bf16)
    return row.setup.tokens_per_step / step_s


def _as_measured(row: MeasuredRow, speed: Throughput) -> Interval:
    """Tokens per second over the time span that the row measured."""
    step_s, broadcast_s = speed.step_s, speed.broadcast_s
    wait = broadcast_s if broadcast_s is not None and row.counts_handover else Interval(0.0, 0.0, 0.0)
    tokens = row.setup.tokens_per_step
    seconds = (step_s.high + wait.high, step_s.typical + wait.typical, step_s.low + wait.low)
    return Interval(*(tokens / value for value in seconds))


def group_of(row: MeasuredRow) -> str:
    if row.setup.trainer == "llm-foundry":
        small = row.setup.shape.name.endswith("m")
        kind = "small models, no rows fitted" if small else "fp8" if row.setup.precision == "fp8" else "dense"
        return f"llm-foundry, {kind}"
    return row.setup.trainer


def where_of(row: MeasuredRow) -> str:
    return f"{row.setup.trainer} on {class_of(row)}"


def errors_of(judged: Iterable[Judged], method: str) -> list[float]:
    """|estimated / measured - 1| of tokens per second."""
    found = []
    for one in judged:
        value = getattr(one, method)
        estimated = value.typical if isinstance(value, Interval) else value
        found.append(abs(estimated / one.row.tokens_per_s - 1))
    return found


def covered(judged: Sequence[Judged], method: str) -> float:
    """The share of rows whose measurement is in the interval."""
    intervals: list[Interval] = [getattr(one, method) for one in judged]
    inside = [i.low <= one.row.tokens_per_s <= i.high for i, one in zip(intervals, judged, strict=True)]
    return sum(inside) / len(inside)


def width(judged: Sequence[Judged], method: str) -> float:
    """The median of half the interval, as a share of the estimate."""
    intervals: list[Interval] = [getattr(one, method) for one in judged]
    return statistics.median(math.sqrt(interval.high / interval.low) - 1 for interval in intervals)


def summary(name: str, judged: Sequence[Judged], method: str) -> dict[str, object]:
    errors = errors_of(judged, method)
    extra: dict[str, object] = {}
    if isinstance(getattr(judged[0], method), Interval):
        extra = {"covered": round(covered(judged, method), 3), "half_width": round(width(judged, method), 3)}
    if method == "held_out" and name in BARS:
        extra["bar"] = BARS[name]
    return {
        "what": f"{name}: {METHODS.get(method, method.replace('_', ' '))}",
        "n": len(errors),
        "mean": round(statistics.mean(errors), 4),
        "median": round(statistics.median(errors), 4),
        "p90": round(record.percentile(errors, 0.9), 4),
        "worst": round(max(errors), 4),
        "within_10_percent": round(sum(error <= 0.1 for error in errors) / len(errors), 3),
        **extra,
    }


def summaries(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """Each group by each method, then each trainer on each class of GPUs by what is left out."""
    table = []
    for name in sorted({group_of(one.row) for one in judged}):
        group = [one for one in judged if group_of(one.row) == name]
        table += [summary(name, group, method) for method in ("held_out", "shipped", "constant_mfu", "naive_mfu")]
    for name in sorted({where_of(one.row) for one in judged}):
        group = [one for one in judged if where_of(one.row) == name]
        table += [summary(name, group, part) for part in PARTS]
    return table


def write_report(path: Path, judged: Sequence[Judged], failed: Mapping[str, str]) -> None:
    """One line per row of the table, in its order: tokens per second measured, by shipped rates, held out by model."""
    cells: dict[str, tuple[str, ...]] = {id: ("",) * (len(REPORT_COLUMNS) - 2) + (why,) for id, why in failed.items()}
    for one in judged:
        measured = f"{one.row.tokens_per_s:.6g}" if one.was_measured else ""
        bounds = (one.source.low, one.source.high, one.trainer.low, one.trainer.high)
        figures = [f"{figure:.6g}" for figure in (*_figures(one.shipped), *_figures(one.held_out), *bounds)]
        why = "" if one.was_measured else "no speed was measured"
        cells[one.id] = (measured, *figures, where_of(one.row), one.basis, name_of(one.row), why)
    beside = path.with_name(path.name + ".tmp")
    with beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(REPORT_COLUMNS)
        for id in sorted(cells, key=_place):
            writer.writerow([id, *cells[id]])
    beside.replace(path)


def _place(id: str) -> tuple[str, int]:
    table, _, number = id.rpartition(":")
    return table, int(number)


def name_of(row: MeasuredRow) -> str:
    setup = row.setup
    name = f"{setup.trainer} {setup.shape.name} {row.hardware.gpus}x{row.hardware.id} "
    return name + f"{setup.ctx_tokens} {setup.objective} {setup.kernel} {row.source}"


def _figures(interval: Interval) -> tuple[float, float, float]:
    return interval.typical, interval.low, interval.high


def print_table(rows: Sequence[dict[str, object]]) -> None:
    columns = ("what", "n", "mean", "median", "p90", "worst", "within_10_percent", "covered", "half_width", "bar")
    print(" | ".join(f"{name:>12}" if index else f"{name:55}" for index, name in enumerate(columns)))
    for row in rows:
        cells = [f"{row.get(name, '')!s:>12}" if index else f"{row[name]!s:55}" for index, name in enumerate(columns)]
        print(" | ".join(cells))


def lines_of(paths: Sequence[Path] | None) -> list[Read]:
    """The lines of the tables; without tables, the shipped rows."""
    if not paths:
        rows = (*measured_rows(), *throughput_rows.single_rows())
        return [Read(f"shipped:{number}", row, "") for number, row in enumerate(rows, start=1)]
    return [line for path in paths for line in throughput_rows.read(path)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", help="tables of measured rows; default: the shipped rows")
    parser.add_argument("--report", type=Path, help="write one line per row to this CSV")
    options = parser.parse_args()
    try:
        judged, failed = judge(lines_of(options.rows))
    except Unreadable as error:
        raise SystemExit(f"error: {error}") from error
    for id, why in failed.items():
        print(f"left out: {id}: {why}")
    table = summaries([one for one in judged if one.was_measured])
    print_table(table)
    if options.report:
        write_report(options.report, judged, failed)
    if not options.rows:
        about = {"machine": record.machine(), "commit": record.commit()}
        about["date"] = time.strftime("%Y-%m-%d", time.gmtime())
        record.write("estimate_throughput", [{**row, "unit": "error of tokens per second", **about} for row in table])


if __name__ == "__main__":
    main()
