"""Extrapolates the loss curve of a measured run to the steps until a loss. Pure; reads no file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.values import Interval

# Loss over steps falls as E + B / steps^beta: Hoffmann et al., arXiv 2203.15556, s. 3.3, at a fixed model.
_FLOORS = 40  # candidates for E, between 0 and the lowest loss
_ROUNDS, _FINER = 3, 8  # rounds of finer candidates around the best
_HIGHEST_FLOOR = 0.9999  # of the lowest loss; the logarithm needs a distance
_LEAST_POINTS = 8
_SKIPPED = 0.1  # first share of the curve, in which warm-up bends it
_NEAR_BEST = 1.5  # floors whose squared error is at most this factor of the best one count for the interval
_MOST_FACTOR = 100.0  # a loss farther away than this factor of the measured steps is not extrapolated
_LOSS_KEYS = ("loss", "loss/mean", "train/loss")


class LossCurve(NamedTuple):
    """loss = floor + scale / steps^power, and the mean squared error of its logarithm."""

    floor: float
    scale: float
    power: float
    error: float

    def steps_to(self, loss: float) -> float:
        """Steps until the loss; infinite if it is at or below the floor, or the curve does not fall."""
        if loss <= self.floor or self.power <= 0:
            return math.inf
        logarithm = math.log(self.scale / (loss - self.floor)) / self.power
        return math.exp(logarithm) if logarithm < 700 else math.inf


def steps_to_loss(lines: Iterable[Mapping[str, Any]], loss: float, source: str) -> Interval:
    """Low, typical and high steps until the loss, by the curves that fit about as well as the best one.

    Raises UserError if the lines hold no falling curve, or the loss is out of its reach.
    """
    points = _points(lines)
    if len(points) < _LEAST_POINTS:
        what = f"{len(points)} steps with a loss"
        raise _error(
            source, what, f"a curve needs {_LEAST_POINTS}", "name a longer run, or give the steps with --steps"
        )
    curves = fit_curves(points)
    best = min(curves, key=lambda curve: curve.error)
    typical, last = best.steps_to(loss), points[-1][0]
    if typical > last * _MOST_FACTOR:
        lowest = min(value for _, value in points)
        what = f"a loss of {loss:g} is out of reach of this curve: lowest {lowest:.4g}, and {best.floor:.4g} in the end"
        why = f"more than {_MOST_FACTOR:g} times the {last} measured steps are not extrapolated"
        raise _error(source, what, why, f"a loss above {max(best.floor, 0.0):.4g}, or the steps with --steps")
    near = [curve.steps_to(loss) for curve in curves if curve.error <= _NEAR_BEST * best.error + 1e-12]
    return Interval(min(near), typical, min(max(near), last * _MOST_FACTOR))


def fit_curves(points: Sequence[tuple[int, float]]) -> list[LossCurve]:
    """A curve for each candidate floor, by least squares of log(loss - floor) over log(step), most near the best."""
    lowest = min(loss for _, loss in points)
    spacing = lowest / _FLOORS
    found = [_fit(points, spacing * index) for index in range(_FLOORS)]
    for _ in range(_ROUNDS):
        best, spacing = min(found, key=lambda curve: curve.error).floor, spacing / _FINER
        finer = (best + spacing * index for index in range(-_FINER, _FINER))
        found += [_fit(points, floor) for floor in finer if 0 <= floor < _HIGHEST_FLOOR * lowest]
    return found


def _fit(points: Sequence[tuple[int, float]], floor: float) -> LossCurve:
    xs, ys = [math.log(step) for step, _ in points], [math.log(loss - floor) for _, loss in points]
    x_mean, y_mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - x_mean) ** 2 for x in xs)
    slope = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    scale = math.exp(min(700.0, y_mean - slope * x_mean))
    # Compare losses, not their logarithms, because those of different floors are on different scales.
    fitted = (floor + math.exp(y_mean + slope * (x - x_mean)) for x in xs)
    error = math.fsum((loss - value) ** 2 for (_, loss), value in zip(points, fitted, strict=True)) / len(points)
    return LossCurve(floor, scale, -slope, error)


def _points(lines: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(step, loss) by rising step, without the first tenth; lines without both are skipped."""
    found: dict[int, float] = {}
    for line in lines:
        step, loss = line.get("step"), next((line[key] for key in _LOSS_KEYS if line.get(key) is not None), None)
        if isinstance(step, bool) or not isinstance(step, int) or step < 1 or isinstance(loss, bool):
            continue
        if isinstance(loss, int | float) and 0 < loss < math.inf:
            found[step] = float(loss)
    ordered = sorted(found.items())
    return ordered[int(len(ordered) * _SKIPPED) :]


def _error(source: str, what: str, why: str, fix: str) -> UserError:
    return UserError(what, f"--target-loss with --calibrate {source}", why, fix, ExitCode.FINDINGS)
