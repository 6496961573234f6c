"""Shows simulated lives on spot machines: a row per interval, JSON, and a plot. Simulates nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core.units import format_seconds, format_usd
from prime_train.estimate.cost.run_cost import InterruptedRun
from prime_train.estimate.spot.advice import SpotSaves
from prime_train.estimate.spot.fruitless import MOST_LOST_MACHINES
from prime_train.estimate.spot.simulate import SpotRun, Tally
from prime_train.estimate.values import Interval
from prime_train.views.estimate_json import spot_saves_json

HEADER = ("INTERVAL", "STEPS", "FINISHED", "GIVEN UP", "TIME", "COST", "LOST", "DALY")
RIGHT = frozenset(range(1, 8))
_INK, _SOFT, _TROUBLE = "#1f4e79", "#b8cde0", "#b22222"  # as in views/plots.py


class Row(NamedTuple):
    """The lives with one interval. `expected` is Daly's expected run; it knows neither waits nor giving up."""

    interval_steps: int
    interval_s: float
    tally: Tally
    expected: InterruptedRun

    @property
    def expected_lost(self) -> float:
        """The share of the time that Daly expects to be lost; 1 for a run without end."""
        return 1.0 if math.isinf(self.expected.run_s) else self.expected.lost_s / self.expected.run_s


class Shown(NamedTuple):
    """All of a simulation. `process` describes the interruptions, `basis` where the times of the run come from."""

    run: SpotRun
    rows: tuple[Row, ...]
    advice: SpotSaves
    process: str
    basis: str


def rows(shown: Shown) -> list[tuple[str, ...]]:
    """Rows under HEADER. Times and costs are those of the lives that finished: the median, and 5 % to 95 %."""
    return [
        (
            format_seconds(row.interval_s) + (" *" if row.interval_steps == shown.advice.advice.interval_steps else ""),
            f"{row.interval_steps:,}",
            f"{row.tally.finished:.0%}",
            f"{row.tally.given_up:.0%}",
            _time(row.tally.elapsed_h),
            _cost(row.tally.usd) if shown.run.usd_per_hour else "",
            f"{row.tally.lost_per_paid:.1%}",
            f"{row.expected_lost:.1%}",
        )
        for row in shown.rows
    ]


def notes(shown: Shown) -> list[str]:
    """What the table does not show."""
    first = shown.rows[0].tally
    longest_h = max(row.tally.longest_fruitless_h for row in shown.rows)
    advice = shown.advice
    lines = [
        f"{first.lives:,} lives per interval, each at most {format_seconds(shown.run.horizon_s)}; {shown.process}",
        shown.basis,
        f"LOST: the first start, repeated work and restarts, of the paid time. DALY: the same without the first start, "
        f"expected by Daly (2006). * recommended: "
        f"{advice.advice.interval_steps:,} steps; up to {advice.longest_steps:,} steps cost at most 1 % more time",
        f"GIVEN UP: {MOST_LOST_MACHINES} machines in a row were lost before a save. The longest paid time without a "
        f"checkpoint was {format_seconds(longest_h * 3600)}",
    ]
    if not any(row.tally.finished for row in shown.rows):
        lines.append(
            "No interval finishes the run: a shorter start or save, fewer interruptions or more days are needed."
        )
    return lines


def as_json(shown: Shown) -> dict[str, Any]:
    """The document of `simulate spot --json`."""
    run = shown.run
    return {
        "version": 1,
        "work_s": run.work_s,
        "restart_s": run.restart_s,
        "usd_per_hour": run.usd_per_hour or None,
        "days": run.horizon_s / 86_400,
        "process": shown.process,
        "basis": shown.basis,
        "advice": spot_saves_json(shown.advice),
        "intervals": [_row_json(row) for row in shown.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    tally = row.tally
    return {
        "interval_steps": row.interval_steps,
        "interval_s": row.interval_s,
        "lives": tally.lives,
        "finished": tally.finished,
        "given_up": tally.given_up,
        "out_of_time": tally.out_of_time,
        "elapsed_h": None if tally.elapsed_h is None else _rounded(tally.elapsed_h),
        "usd": None if tally.usd is None else _rounded(tally.usd),
        "mean_usd": round(tally.mean_usd, 4),
        "mean_lost_h": round(tally.mean_lost_h, 4),
        "mean_interruptions": round(tally.mean_interruptions, 3),
        "lost_per_paid": round(tally.lost_per_paid, 5),
        "daly_lost": round(row.expected_lost, 5),
        "longest_fruitless_h": round(tally.longest_fruitless_h, 4),
    }


def draw(shown: Shown, path: Path) -> None:
    """Writes a plot of the lost time by interval, as .svg or .png. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    minutes = [row.interval_s / 60 for row in shown.rows]
    axes.plot(minutes, [100 * row.expected_lost for row in shown.rows], color=_SOFT, linewidth=3, label="Daly (2006)")
    lost = [100 * row.tally.lost_per_paid for row in shown.rows]
    axes.plot(minutes, lost, color=_INK, marker="o", label="simulated")
    given_up = [100 * row.tally.given_up for row in shown.rows]
    axes.plot(minutes, given_up, color=_TROUBLE, linestyle=":", marker="x", label="lives given up")
    axes.axvline(shown.advice.advice.interval_s / 60, color="#777777", linewidth=0.9, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlabel("minutes between checkpoints")
    axes.set_ylabel("% of the paid time lost, % of the lives")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, format=path.suffix.removeprefix("."))


def _rounded(interval: Interval) -> dict[str, float]:
    return {name: round(value, 4) for name, value in interval._asdict().items()}


def _time(hours: Interval | None) -> str:
    if hours is None:
        return "-"
    low, typical, high = (format_seconds(value * 3600) for value in hours)
    return f"{typical} ({low} - {high})"


def _cost(usd: Interval | None) -> str:
    if usd is None:
        return "-"
    low, typical, high = (format_usd(value) for value in usd)
    return f"{typical} ({low} - {high})"
