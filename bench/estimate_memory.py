"""Evaluates the memory estimate on measured rows, beside other tools: error, error on unseen tables, coverage.

    python bench/estimate_memory.py [--rows FILE] [--report FILE] [--quick] [--alone]

Each row becomes an ordinary RunSpec, hardware and model and goes through setup_of and training_memory, which never
see the measurement. --quick skips the fits without each table, --alone the other tools. Rows of kind "vllm" and
published start-up logs are evaluated by KV tokens and weights. A row without a measured peak is only estimated; an
unreadable row is in the report with the reason. "Table left out": fit and interval are from other tables. "Inside":
the share of rows within the interval. "Refused": the share that the verdict calls too large, though they ran.
"Accepted": the share of runs that ran out of memory and are said to fit.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import memory_served
import record
import row_cells
from memory_held_out import held_out
from memory_rows import TABLES, Row, read
from memory_served import Server
from memory_tools import Tool, tools

from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.estimate import verdict
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.values import Interval, RoleMemory
from prime_train.estimate.verdict import MemoryVerdict

# Requirements for each group, with the table left out.
BARS = {"prime-rl": "mean <= 4 %", "other trainers": "mean <= 12 %"}
VLLM_BAR = "weights mean <= 2 %, KV tokens mean <= 2 %"
ALL_ROWS_BAR = "bound above the measurement in >= 90 % of rows, refused <= 5 %, accepted <= 5 %"
REPORT_COLUMNS = (
    *("row", "measured", "estimated", "low", "high", "unit", "group", "program", "phase"),
    *("weights_measured", "weights_estimated", "reason"),
)
Cells = dict[str, str]


class Judged(NamedTuple):
    """One row, its estimate, and the estimates of the other tools. Bytes on one GPU."""

    row: Row
    memory: RoleMemory
    others: tuple[float | None, ...]

    @property
    def measured(self) -> float:
        assert self.row.measured_gib is not None
        return self.row.measured_gib * GIB


def judge(row: Row, others: Sequence[Tool]) -> Judged:
    setup = setup_of(row.run, row.hardware, row.shape)
    memory = training_memory(setup, row.hardware)
    return Judged(row, memory, tuple(_estimate_with(tool, setup) for tool in others))


def _estimate_with(tool: Tool, setup: TrainSetup) -> float | None:
    """A tool's estimate of a row; None if the tool fails on it."""
    try:
        return tool.bytes_of(setup)
    except (ArithmeticError, LookupError, ValueError):
        return None


def judge_all(rows: Sequence[Row], others: Sequence[Tool]) -> tuple[list[Judged], list[tuple[str, str]]]:
    """The estimates, and the rows that could not be estimated: id and reason."""
    judged, failed = [], []
    for row in rows:
        try:
            judged.append(judge(row, others))
        except (UserError, ArithmeticError, LookupError, ValueError) as error:
            failed.append((row.id, f"no estimate: {type(error).__name__}: {error}"))
    return judged, failed


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """From pairs (estimated, measured): mean, median, p90 and worst error, and the share within 10 %."""
    off = [abs(estimated / measured - 1) for estimated, measured in pairs]
    return {
        "mean": statistics.mean(off),
        "median": statistics.median(off),
        "p90": record.percentile(off, 0.9),
        "worst": max(off),
        "within_10_percent": sum(each <= 0.1 for each in off) / len(off),
    }


class Figure(NamedTuple):
    """One row by one estimator: bytes, the upper bound if there is one, and whether it is refused though it ran."""

    estimated: float
    measured: float
    high: float | None = None
    refused: bool | None = None
    inside: bool | None = None


def ours(judged: Judged, memory: RoleMemory) -> Figure:
    """Figures of prime-train for a row, with the verdict that the command would show."""
    usable, interval = judged.row.hardware.usable_bytes, figure_of(judged.row, memory)
    refused = verdict.judge_role(memory, usable).verdict is MemoryVerdict.DOES_NOT_FIT if usable else None
    inside = interval.low <= judged.measured <= interval.high
    return Figure(interval.typical, judged.measured, interval.high, refused, inside)


def figure_of(row: Row, memory: RoleMemory) -> Interval:
    """The estimate of the figure that the row has."""
    match row.figure:
        case "allocated":
            return memory.allocated or memory.reserved
        case "nvidia-smi":
            return memory.shown
    return memory.reserved


def accepted(rows: Sequence[Judged], memory_of: Mapping[str, RoleMemory]) -> dict[str, Any]:
    """How many runs that ran out of memory are said to fit."""
    known = [each for each in rows if each.row.hardware.usable_bytes and each.row.id in memory_of]
    chances = [verdict.judge_role(memory_of[each.row.id], each.row.hardware.usable_bytes) for each in known]
    fit = sum(chance.verdict is MemoryVerdict.FITS for chance in chances)
    return {"n": len(chances), "accepted": fit / len(chances) if chances else 0.0}


def tool_figure(judged: Judged, number: int) -> Figure | None:
    """Figures of another tool; None if it does not support the row."""
    estimated, usable = judged.others[number], judged.row.hardware.usable_bytes
    return None if estimated is None else Figure(estimated, judged.measured, None, estimated > usable > 0)


def summary(group: str, by: str, figures: Sequence[Figure]) -> dict[str, Any]:
    """One line of the table."""
    line = {"group": group, "by": by, "n": len(figures)}
    line |= errors([(each.estimated, each.measured) for each in figures])
    over = [each.high / each.measured - 1 for each in figures if each.high is not None]
    if over:
        line |= {"bound_above": sum(each >= 0 for each in over) / len(over)}
        line |= {"bound_over_median": statistics.median(over)}
    inside = [each.inside for each in figures if each.inside is not None]
    if inside:
        line |= {"inside": sum(inside) / len(inside)}
    refused = [each.refused for each in figures if each.refused is not None]
    return line | ({"refused": sum(refused) / len(refused)} if refused else {})


def table(judged: Sequence[Judged], unseen: dict[str, RoleMemory], others: Sequence[Tool]) -> list[dict[str, Any]]:
    """One line per group, program and model for prime-train, and per group and program for the other tools."""
    lines: list[dict[str, Any]] = []
    programs = sorted({each.row.program for each in judged if each.row.group != "prime-rl"})
    models = sorted({each.row.shape.name for each in judged})
    groups = [(group, [each for each in judged if each.row.group == group]) for group in BARS]
    groups += [(name, [each for each in judged if each.row.program == name]) for name in programs]
    groups.append(("all", list(judged)))
    by_model = [(name.split("/")[-1], [each for each in judged if each.row.shape.name == name]) for name in models]
    for group, members in (*groups, *by_model):
        if not members:
            continue
        lines.append(summary(group, "prime-train", [ours(each, each.memory) for each in members]))
        held = [ours(each, unseen[each.row.id]) for each in members if each.row.id in unseen]
        if held:
            lines.append(summary(group, "prime-train, table left out", held))
        for number, tool in enumerate(others if (group, members) in groups else ()):
            pairs = [(each, tool_figure(each, number)) for each in members]
            known = [(each, figure) for each, figure in pairs if figure is not None]
            if known:
                lines.append(summary(group, tool.name, [figure for _, figure in known]))
                same = [ours(each, each.memory) for each, _ in known]
                lines.append(summary(group, "  prime-train on these rows", same))
    return lines


def report_of(
    judged: Sequence[Judged], servers: Sequence[Server], unread: Sequence[tuple[str, str]]
) -> dict[str, Cells]:
    """Row id -> the cells of its report line."""
    cells: dict[str, Cells] = {}
    for each in judged:
        measured, row = each.row.measured_gib, each.row
        cells[row.id] = {
            **_figures(measured, Interval(*(value / GIB for value in figure_of(row, each.memory))), "GiB"),
            "group": row.group,
            "program": row.program,
            "phase": each.memory.phase,
            "reason": "" if measured else "no peak was measured",
        }
    for server in servers:
        answers = memory_served.answers(server)
        weights = next(answer for answer in answers if answer.quantity == "weights")
        first, in_gib = answers[0], _figures(weights.measured, weights.estimate, "GiB")
        cells[server.id] = {
            **_figures(first.measured, first.estimate, first.unit),
            "group": "vLLM",
            "program": first.quantity,
            "weights_measured": in_gib["measured"],
            "weights_estimated": in_gib["estimated"],
            "reason": "" if first.measured else "nothing was measured",
        }
    return cells | {id: {"reason": why} for id, why in unread}


def _figures(measured: float | None, estimate: Interval, unit: str) -> Cells:
    digits = 4 if unit == "GiB" else 0
    low, typical, high = (f"{value:.{digits}f}" for value in estimate)
    text = f"{measured:.{digits}f}" if measured else ""
    return {"measured": text, "estimated": typical, "low": low, "high": high, "unit": unit}


def write_report(cells: dict[str, Cells], path: Path) -> None:
    """Writes one line per row in the order of the table, replacing the file at once."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, REPORT_COLUMNS, restval="")
        out.writeheader()
        for id in sorted(cells, key=lambda id: (id.rpartition(":")[0], int(id.rpartition(":")[2]))):
            out.writerow({"row": id, **cells[id]})
    beside.replace(path)


def show(lines: Sequence[dict[str, Any]], bars: Mapping[str, str]) -> None:
    heads = "".join(f"{name:>8}" for name in ("mean", "median", "p90", "worst"))
    print(f"{'group':26}{'by':56}{'n':>4}{heads}{'<10 %':>7}{'above':>7}{'over':>7}{'inside':>7}{'refused':>9}")
    for line in lines:
        if "accepted" in line:
            print(f"{line['group']:26}{line['by']:56}{line['n']:>4}  accepted {line['accepted']:.1%}")
            continue
        cells = [f"{line[key]:>8.1%}" for key in ("mean", "median", "p90", "worst")]
        cells.append(f"{line['within_10_percent']:>7.0%}")
        if "bound_above" in line:
            cells += [f"{line[key]:>7.1%}" for key in ("bound_above", "bound_over_median", "inside")]
        if "refused" in line:
            cells.append(" " * (21 if "bound_above" not in line else 0) + f"{line['refused']:>9.1%}")
        print(f"{line['group'][:25]:26}{line['by']:56}{line['n']:>4}{''.join(cells)}")
    print("\n".join(f"required of {group}: {bar}" for group, bar in bars.items()))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="a table of measured rows, CSV, instead of the fitted ones")
    parser.add_argument("--report", type=Path, help="write one line per row here, CSV")
    parser.add_argument("--quick", action="store_true", help="skip the fits without each table")
    parser.add_argument("--alone", action="store_true", help="skip the other tools, which import torch")
    parser.add_argument("--write", action="store_true", help="write bench/results/estimate_memory.json")
    return parser.parse_args()


def kept(lines: Sequence[dict[str, Any]], rows: str) -> list[dict[str, Any]]:
    """The lines of the table to record."""
    about = {"rows": rows, "machine": record.machine(), "commit": record.commit()}
    about["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    return [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()} | about
        for line in lines
    ]


def main() -> None:
    options = arguments()
    rows: list[Row] = []
    unread: list[tuple[str, str]] = []
    servers: list[Server] = []
    try:
        for path in (options.rows,) if options.rows else TABLES:
            more_rows, more_unread = read(path)
            more_servers, unserved = memory_served.read(path)
            rows, servers, unread = rows + more_rows, servers + more_servers, unread + more_unread + unserved
    except row_cells.Unreadable as error:
        raise SystemExit(f"error: {error}") from error
    others = () if options.alone else tools()
    judged, failed = judge_all(rows, others)
    unread += failed
    for id, why in unread:
        print(f"left out: {id}: {why}")
    with_peak = [each for each in judged if each.row.measured_gib and each.row.ran]
    out_of_memory = [each for each in judged if not each.row.ran]
    unseen = {} if options.quick else held_out([each.row for each in (*with_peak, *out_of_memory)])
    lines = table(with_peak, unseen, others)
    for by, memory_of in (
        ("prime-train", {each.row.id: each.memory for each in out_of_memory}),
        ("prime-train, table left out", unseen),
    ):
        lines.append({"group": "out of memory", "by": by, **accepted(out_of_memory, memory_of)})
    for name, found in memory_served.pairs([*memory_served.logs(), *servers]).items():
        lines.append({"group": "vLLM", "by": name, "n": len(found), **errors(found)})
    show(lines, {**BARS, "all rows": ALL_ROWS_BAR, "vLLM": VLLM_BAR})
    if options.report:
        write_report(report_of(judged, servers, unread), options.report)
    if options.write:
        names = "fitted rows" if options.rows is None else options.rows.name
        print(record.write("estimate_memory", kept(lines, names)))


if __name__ == "__main__":
    main()
