"""Fits the costs of a unit of work, per trainer, to measured rows, and writes registry/throughput_fitted.toml.

The spread of a trainer on a class of GPUs is that of rows left out, once with their model and once with their source;
that of trainers without rows is how far each trainer and class lies from the published costs.

A ridge keeps each cost near its published value (registry/throughput.toml). Costs are never negative, and those of
matrix products are at least a third of the published value. The error is that of the logarithm of the step time; large
errors count less. Trainers with fewer than MIN_ROWS rows are not fitted.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prime_train.estimate.time.measured_rows import MeasuredRow, find_nearby, measured_rows
from prime_train.estimate.time.rl_step_time import broadcast_s
from prime_train.estimate.time.step_terms import (
    Costs,
    Spread,
    TrainerRates,
    gpu_class,
    ideal_terms,
    published_costs,
    step_terms,
    unmeasured_spread,
)

MIN_ROWS = 40
RIDGE = 0.05  # a cost at twice its published value weighs as much as one row with an error of 22 %
# Costs with few publications: the square of this factor weakens their ridge.
LOOSE = {
    "adapter_visits": 30.0,
    "step": 4.0,
    "expert_visits": 5.0,
    "adapters": 2.0,
    "experts": 2.0,
    "dispatch": 2.0,
    "head": 2.0,
    "tensor": 3.0,
    "context": 3.0,
    "network": 2.0,
}
FLOORED = ("linear", "experts", "attention")
HUBER = 0.08  # larger errors count linearly, smaller ones quadratically
SWEEPS, ROUNDS = 60, 12
QUANTILES = (0.03, 0.97)  # slightly more than nine of ten, because a spread is applied to unseen rows
NINE_OF_TEN = 0.95  # below this quantile and above its mirror lie nine of ten
GROWTHS = (0.2, 0.35, 0.5)  # candidates for the growth of an interval with distance
SHARES = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # candidates for the relative cost of recomputed work
OUTPUT = Path(__file__).resolve().parents[1] / "registry" / "throughput_fitted.toml"

Array = npt.NDArray[np.float64]
Key = tuple[str, str]
Part = Callable[[MeasuredRow], str]  # the part of the rows that a row is left out with


class Residual(NamedTuple):
    """log(measured / estimated step time) of a row on a class of GPUs, and its distance to the nearest fitted row."""

    error: float
    distance: float
    gpus: str


def model_of(row: MeasuredRow) -> str:
    return row.setup.shape.name


def source_of(row: MeasuredRow) -> str:
    return row.publication


def step_s(row: MeasuredRow) -> float:
    """Seconds of one measured step, without the weight broadcast if the measurement includes it."""
    whole = row.setup.tokens_per_step / row.tokens_per_s
    if not row.counts_handover:
        return whole
    return max(whole - broadcast_s(row.setup.shape, row.hardware).typical, whole / 4)


def fit(rows: Sequence[MeasuredRow], share: float = 1.0) -> TrainerRates:
    """The rates of one trainer's rows. `share`: the cost of recomputed work relative to its first computation."""
    published = published_costs()
    keys, design = _design(rows, share)
    start = np.array([_published(published, key) for key in keys])
    loose = np.array([LOOSE.get(term, 1.0) for term, _ in keys])
    floored = np.array([term in FLOORED for term, _ in keys])
    ridge = RIDGE / np.maximum(start, 0.05) ** 2 / loose**2
    costs = _solve(design, start, ridge, np.where(floored, start / 3, 0.0))
    fitted: dict[str, dict[str, float]] = {}
    for (term, key), cost in zip(keys, costs, strict=True):
        fitted.setdefault(term, {})[key] = float(f"{cost:.4g}")
    return TrainerRates(fitted, published, unmeasured_spread(), fitted_rows=len(rows), recompute_share=share)


def _design(rows: Sequence[MeasuredRow], share: float) -> tuple[list[Key], Array]:
    """Ideal seconds of every cost in every row, divided by the measured step, so a row times the costs is 1."""
    columns: list[dict[Key, float]] = []
    for row in rows:
        column: dict[Key, float] = {}
        for term in ideal_terms(row.setup, row.hardware, share):
            key = (term.cost, _key(term.cost, term.keys))
            column[key] = column.get(key, 0.0) + term.seconds / step_s(row)
        columns.append(column)
    keys = sorted({key for column in columns for key in column})
    return keys, np.array([[column.get(key, 0.0) for key in keys] for column in columns])


def _key(term: str, keys: Sequence[str]) -> str:
    """The key of a fitted cost: the first key, except for adapters of experts, where only some versions use a loop."""
    known = published_costs()[term]
    return keys[0] if term != "expert_visits" or keys[0] in known else keys[1]


def _published(published: Costs, key: Key) -> float:
    term, name = key
    costs = published[term]
    return costs.get(name, costs.get(f"any/{name.partition('/')[2]}", costs["any"]))


def _solve(design: Array, start: Array, ridge: Array, floor: Array) -> Array:
    """The costs that minimise the logarithm of each row's sum: weighted least squares by coordinate descent."""
    costs = start.copy()
    for _ in range(ROUNDS):
        sums = design @ costs
        errors = np.abs(np.log(sums))
        weights = np.sqrt(np.minimum(1.0, HUBER / np.maximum(errors, 1e-9)) / np.maximum(sums, 0.2))
        weighed = design * weights[:, None]
        normal = weighed.T @ weighed + np.diag(ridge)
        right = weighed.T @ weights + ridge * start
        for _ in range(SWEEPS):
            for index in range(len(costs)):
                step = (normal[index] @ costs - right[index]) / normal[index, index]
                costs[index] = max(floor[index], costs[index] - step)
    return costs


def estimated_s(row: MeasuredRow, rates: TrainerRates) -> float:
    return sum(term.seconds for term in step_terms(row.setup, row.hardware, rates))


def held_out(rows: Sequence[MeasuredRow], share: float, part: Part) -> list[Residual]:
    """The residuals of rows by fits without their part. A row that is far from the rest has none, because its interval
    is that of trainers without rows."""
    found = []
    for name in sorted({part(row) for row in rows}):
        others = [row for row in rows if part(row) != name]
        if not others:
            continue  # one source only
        rates = fit(others, share)
        for row in (row for row in rows if part(row) == name):
            around = find_nearby(row.setup, row.hardware, others)
            if around is not None and not around.is_far:
                found.append(residual(row, rates, around.distance))
    return found


def seen(rows: Sequence[MeasuredRow], rates: TrainerRates) -> list[Residual]:
    """The residuals of fitted rows: the difference between rows of one setup."""
    return [residual(row, rates, 0.0) for row in rows]


def residual(row: MeasuredRow, rates: TrainerRates, distance: float) -> Residual:
    return Residual(math.log(step_s(row) / estimated_s(row, rates)), distance, gpu_class(row.hardware))


def spreads_of(rows: Sequence[MeasuredRow], rates: TrainerRates) -> dict[str, Spread]:
    """The spread on each class of GPUs: of rows left out with their model, left out with their source, and fitted; at
    least that of all classes, because a class alone has few models."""
    share = rates.recompute_share
    found = [*held_out(rows, share, model_of), *held_out(rows, share, source_of), *seen(rows, rates)]
    all_classes = spread_of(found)
    own = {name: spread_of([each for each in found if each.gpus == name]) for name in sorted({e.gpus for e in found})}
    return {name: wider_of(spread, all_classes) for name, spread in own.items()}


def wider_of(one: Spread, other: Spread) -> Spread:
    return Spread(min(one.low, other.low), max(one.high, other.high), max(one.growth, other.growth))


def spread_of(residuals: Sequence[Residual]) -> Spread:
    """The spread that covers nine of ten residuals near and far, with the growth that makes it narrowest."""
    found: list[tuple[float, Spread]] = []
    distances = np.array([each.distance for each in residuals])
    errors = np.array([each.error for each in residuals])
    for growth in GROWTHS:
        grown = 1 + growth * distances
        parts = [(errors / grown)[distances == 0], (errors / grown)[distances > 0]]
        low = min(-0.02, *(float(np.quantile(part, QUANTILES[0])) for part in parts if part.size))
        high = max(0.02, *(float(np.quantile(part, QUANTILES[1])) for part in parts if part.size))
        spread = Spread(round(math.exp(low), 3), round(math.exp(high), 3), growth)
        found.append((float(np.mean(grown)) * (high - low), spread))
    return min(found)[1]


def best_share(rows: Sequence[MeasuredRow]) -> float:
    """The share of recomputed work with the smallest error of the fit; 1 if every row recomputes the same."""
    if len({row.setup.recompute for row in rows}) < 2:
        return 1.0

    def error(share: float) -> float:
        rates = fit(rows, share)
        return sum(abs(math.log(step_s(row) / estimated_s(row, rates))) for row in rows)

    return min(SHARES, key=error)


def fit_all(rows: Sequence[MeasuredRow]) -> dict[str, TrainerRates]:
    """The rates of every trainer with enough rows, each with the spread of its residuals held out by model."""
    fitted = {}
    for trainer, count in Counter(row.setup.trainer for row in rows).items():
        if count < MIN_ROWS:
            continue
        own = [row for row in rows if row.setup.trainer == trainer]
        share = best_share(own)
        rates = fit(own, share)
        rates = rates._replace(spreads=spreads_of(own, rates))
        models = sorted({row.setup.shape.name.rpartition("/")[2] for row in own})
        fitted[trainer] = rates._replace(fitted_on=f"{count} rows of {', '.join(models)}")
    return fitted


def fit_unmeasured(rows: Sequence[MeasuredRow]) -> Spread:
    """The spread of a trainer without rows: where nine of ten rows of the next trainer and class are expected.

    The rows of one trainer on one class are one observation of how far the published costs are off, so that a large
    table does not outweigh the others. The interval is that of Student's t for the next such observation and a row of
    it. Quantiles of all rows would hold 55 % of torchtune's rows and 89 % of torchtitan's where these are left out.
    """
    bare = TrainerRates({}, published_costs(), Spread(1.0, 1.0, 0.0))
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found = residual(row, bare, 0.0)
        groups.setdefault((row.setup.trainer, found.gpus), []).append(found.error)
    means = [statistics.mean(errors) for errors in groups.values()]
    inside = statistics.mean(statistics.pvariance(errors) for errors in groups.values() if len(errors) > 1)
    deviation = math.sqrt(statistics.variance(means) * (1 + 1 / len(means)) + inside)
    reach = student_t(len(means) - 1) * deviation
    centre = statistics.mean(means)
    return Spread(round(math.exp(centre - reach), 3), round(math.exp(centre + reach), 3), 0.0)


def student_t(freedom: int) -> float:
    """The quantile NINE_OF_TEN of Student's t, by its expansion in 1 / freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(NINE_OF_TEN)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def toml_of(fitted: Mapping[str, TrainerRates], unmeasured: Spread) -> str:
    lines = [
        "# Written by bench/fit_throughput.py from registry/measured_rows/throughput.csv. Costs are multiples of the",
        "# ideal time; those of visits and of the step are milliseconds. spread, by class of GPUs: nine of ten rows,",
        "# left out with their model or their source, lie between low and high times the estimate at distance 0 from",
        "# the nearest row; it grows with the distance.",
        "",
        "[unmeasured]  # trainers without rows: where rows of the next trainer lie around the published costs",
        _inline("spread", unmeasured._asdict()),
    ]
    for trainer, rates in fitted.items():
        lines += ["", f"[trainer.{trainer}]", f"rows = {rates.fitted_rows}", f'fitted_on = "{rates.fitted_on}"']
        lines += [f"recompute_share = {rates.recompute_share}", "", f"[trainer.{trainer}.spread]"]
        lines += [_inline(name, spread._asdict()) for name, spread in rates.spreads.items()]
        lines += ["", f"[trainer.{trainer}.cost]"]
        lines += [_inline(term, dict(costs)) for term, costs in rates.fitted.items()]
    return "\n".join(lines) + "\n"


def _inline(name: str, values: dict[str, float]) -> str:
    pairs = (f"{key} = {value}" if key.isalnum() else f'"{key}" = {value}' for key, value in values.items())
    return f"{name} = {{ {', '.join(pairs)} }}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    rows = measured_rows()
    text = toml_of(fit_all(rows), fit_unmeasured(rows))
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
