"""Groups runs that differ in their seeds alone, and judges whether groups differ by more than the noise. Pure."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple

from prime_train.config.differences import list_differences
from prime_train.spec import RunSpec
from prime_train.views.compare.curves import METRICS, Curve, Curves, Point

_OF_A_REPEAT = frozenset({"run.seed", "run.name", "run.dir"})
_LAST_PART = 0.1  # in which single steps vary more than runs do
# Student's t, two-sided 95 %, for 1 degree of freedom and more; the last value for any above. Source: NIST/SEMATECH
# e-Handbook of Statistical Methods, s. 1.3.6.7.2.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


class Result(NamedTuple):
    """What a group reached: `mean` over its runs, and their standard deviation, None for a single run."""

    mean: float
    spread: float | None
    runs: int


class Noise(NamedTuple):
    """A group against the first one. `least`: the difference that the noise alone has in one case out of twenty."""

    metric: str
    group: int
    difference: float
    least: float | None
    verdict: Literal["larger", "not larger", "not known"]


def group(specs: Sequence[RunSpec | None]) -> list[list[int]]:
    """Positions: runs that differ in their seeds alone are together. None: a config that is not known."""
    groups: list[list[int]] = []
    for place, spec in enumerate(specs):
        for members in groups:
            if spec is not None and all(_is_repeat(specs[member], spec) for member in members):
                members.append(place)
                break
        else:
            groups.append([place])
    return groups


def _is_repeat(one: RunSpec | None, other: RunSpec) -> bool:
    """Whether only the seed differs. A run with the same seed may be the same to the last digit, and shows no noise."""
    if one is None or one.run.seed == other.run.seed:
        return False
    return {difference.key for difference in list_differences(one, other)} <= _OF_A_REPEAT


def results(curves: Sequence[Curves], groups: Sequence[Sequence[int]]) -> list[dict[str, Result]]:
    """What each group reached in the last tenth up to the last common step, by metric."""
    last_step = min((found.last_step for found in curves if found.by_metric), default=0)
    reached = [{name: _reached(curve, last_step) for name, curve in found.by_metric.items()} for found in curves]
    return [
        {
            name: _result(values)
            for name in METRICS
            if (values := [value for run in members if (value := reached[run].get(name)) is not None])
        }
        for members in groups
    ]


def _reached(curve: Curve, last_step: int) -> float | None:
    """The mean over the last tenth up to a step; the last value where a curve has few points, as evaluations have."""
    before = [point for point in curve if point.step <= last_step]
    tenth = [point.value for point in before if point.step > (1 - _LAST_PART) * last_step]
    return statistics.fmean(tenth or [before[-1].value]) if before else None


def _result(values: Sequence[float]) -> Result:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Result(statistics.fmean(values), spread, len(values))


def compare(found: Sequence[dict[str, Result]]) -> list[Noise]:
    """Every other group against the first one, by metric."""
    return [
        _judge(name, place, found[0][name], other[name])
        for place, other in enumerate(found[1:], start=1)
        for name in METRICS
        if name in found[0] and name in other
    ]


def _judge(metric: str, group: int, one: Result, other: Result) -> Noise:
    """Student's t-test with the pooled variance. With a single run, the noise in its group is not known."""
    difference = other.mean - one.mean
    if one.spread is None or other.spread is None:
        return Noise(metric, group, difference, None, "not known")
    freedom = one.runs + other.runs - 2
    pooled = ((one.runs - 1) * one.spread**2 + (other.runs - 1) * other.spread**2) / freedom
    least = _T95[min(freedom, len(_T95)) - 1] * math.sqrt(pooled * (1 / one.runs + 1 / other.runs))
    return Noise(metric, group, difference, least, "larger" if abs(difference) > least else "not larger")


class Band(NamedTuple):
    """Mean and spread at the places `x`, where all runs have a value."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]


def band(curves: Sequence[Sequence[tuple[float, float]]]) -> Band | None:
    """The band for several curves, each a list with (x, y) with rising x; None where they do not overlap."""
    begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    fewest = min(curves, key=len)
    places = [x for x, _ in fewest if begin <= x <= end]
    if not places:
        return None
    values = [[_between(curve, x) for curve in curves] for x in places]
    means = tuple(statistics.fmean(found) for found in values)
    return Band(tuple(places), means, tuple(statistics.stdev(found) for found in values))


def _between(curve: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x`, on the line between the points beside it."""
    place = bisect_left(curve, x, key=lambda point: point[0])
    if place == 0 or curve[place][0] == x:
        return curve[place][1]
    (left, low), (right, high) = curve[place - 1], curve[place]
    return low + (high - low) * (x - left) / (right - left)


def along(curve: Curve, axis: str) -> list[tuple[float, Point]]:
    """The points at their places on an axis, in its order, without those whose place is not known."""
    found = [(x, point) for point in curve if math.isfinite(x := float(getattr(point, axis)))]
    return sorted(found, key=lambda entry: entry[0])
