"""Lays out the curves of several runs as panels, one for each metric, for the picture and the terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from prime_train.views.compare.curves import METRICS, Curve, Curves
from prime_train.views.compare.repeats import along, band
from prime_train.views.run.plots import smooth

AXIS_LABELS = {"step": "optimizer step", "tokens": "tokens seen", "hours": "hours of training"}
_LISTED = 4  # more names do not fit into a legend


class Axes(NamedTuple):
    """What a person asked for. `smooth`: steps after which a value counts half in the mean; 0: no mean is drawn."""

    x: str = "step"
    smooth: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line in a panel. `low` and `high`: what is drawn around it. `colour` is its group."""

    name: str
    colour: int
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    style: str  # "each step" | "smoothed" | "mean"


@dataclass(frozen=True, slots=True)
class Panel:
    metric: str
    label: str
    x_label: str
    lines: list[Line]


def lay_out(names: Sequence[str], curves: Sequence[Curves], groups: Sequence[Sequence[int]], axes: Axes) -> list[Panel]:
    """The panels that have a line, ordered as METRICS."""
    panels = []
    for metric, label in METRICS.items():
        lines = [
            line
            for colour, members in enumerate(groups)
            for line in _lines_of(metric, colour, [(names[run], curves[run]) for run in members], axes)
        ]
        if lines:
            panels.append(Panel(metric, label, AXIS_LABELS[axes.x], lines))
    return panels


def as_json(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    return [asdict(panel) for panel in panels]


def _lines_of(metric: str, colour: int, runs: Sequence[tuple[str, Curves]], axes: Axes) -> list[Line]:
    """The lines for one group: each run, and the mean over several."""
    drawn, means = [], []
    for name, found in runs:
        curve = found.by_metric.get(metric, ())
        placed = along(curve, axes.x)
        if not placed:
            continue
        x, points = [place for place, _ in placed], [point for _, point in placed]
        values, low, high = ([getattr(point, part) for point in points] for part in ("value", "low", "high"))
        drawn.append(Line(name, colour, x, values, low, high, "each step"))
        half_life = _half_life(curve, axes.smooth)
        if half_life is not None and metric != "held_out":
            values = smooth(values, half_life)
            drawn.append(Line(name, colour, x, values, values, values, "smoothed"))
        means.append(list(zip(x, values, strict=True)))
    found_band = band(means) if len(means) > 1 else None
    if found_band is not None:
        x, mean, spread = map(list, found_band)
        low = [middle - half for middle, half in zip(mean, spread, strict=True)]
        high = [middle + half for middle, half in zip(mean, spread, strict=True)]
        names = [name for name, _ in runs]
        listed = ", ".join(names[:_LISTED]) + (" ..." if len(names) > _LISTED else "")
        drawn.append(Line(f"{listed}: mean of {len(means)} seeds", colour, x, mean, low, high, "mean"))
    return drawn


def _half_life(curve: Curve, steps: int) -> float | None:
    """The points in so many steps; None where that is less than one, so that a mean would change nothing."""
    if steps <= 0 or len(curve) < 2:
        return None
    steps_each = (curve[-1].step - curve[0].step) / (len(curve) - 1)
    return steps / steps_each if steps >= steps_each > 0 else None
