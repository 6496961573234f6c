"""Fits the costs of a unit of work, per trainer, to measured rows, and writes registry/throughput_fitted.toml.

A ridge keeps each cost near its published value (registry/throughput.toml). Costs are never negative, and those of
matrix products are at least a third of the published value. The error is that of the logarithm of the step time; large
errors count less. Trainers with fewer than MIN_ROWS rows are not fitted.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from prime_train.estimate.time.rl_step_time import broadcast_s
from prime_train.estimate.time.step_terms import Costs, Spread, TrainerRates, ideal_terms, published_costs, step_terms
from prime_train.estimate.time.throughput import MeasuredRow, find_nearby, measured_rows

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
GROWTHS = (0.2, 0.35, 0.5)  # candidates for the growth of an interval with distance
SHARES = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # candidates for the relative cost of recomputed work
OUTPUT = Path(__file__).resolve().parents[1] / "registry" / "throughput_fitted.toml"

Array = npt.NDArray[np.float64]
Key = tuple[str, str]


def step_s(row: MeasuredRow) -> float:
    """Seconds of one measured step, without the weight broadcast if the measurement includes it."""
    whole = row.setup.tokens_per_step / row.tokens_per_s
    if not row.counts_handover:
        return whole
    return max(whole - broadcast_s(row.setup.shape, row.hardware).typical, whole / 4)


def fit(rows: Sequence[MeasuredRow], share: float = 1.0, spread: Spread | None = None) -> TrainerRates:
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
    return TrainerRates(fitted, published, spread or Spread(0.8, 1.25, 0.1), len(rows), share)


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


def held_out(rows: Sequence[MeasuredRow], share: float) -> list[tuple[float, float]]:
    """For each row: log(measured / estimated step time) and the distance to the nearest row, by a fit without the rows
    of its model."""
    found: dict[int, tuple[float, float]] = {}
    for model in sorted({row.setup.shape.name for row in rows}):
        others = [row for row in rows if row.setup.shape.name != model]
        rates = fit(others, share)
        for index, row in enumerate(rows):
            if row.setup.shape.name == model:
                around = find_nearby(row.setup, row.hardware, others)
                residual = math.log(step_s(row) / estimated_s(row, rates))
                found[index] = (residual, around.distance if around else 0.0)
    return [found[index] for index in range(len(rows))]


def seen(rows: Sequence[MeasuredRow], rates: TrainerRates) -> list[tuple[float, float]]:
    """The same for rates fitted to every row, at distance 0: the difference between rows of one setup."""
    return [(math.log(step_s(row) / estimated_s(row, rates)), 0.0) for row in rows]


def spread_of(residuals: Sequence[tuple[float, float]]) -> Spread:
    """The spread that covers nine of ten residuals near and far, with the growth that makes it narrowest."""
    found: list[tuple[float, Spread]] = []
    distances = np.array([distance for _, distance in residuals])
    errors = np.array([residual for residual, _ in residuals])
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
        rates = rates._replace(spread=spread_of([*held_out(own, share), *seen(own, rates)]))
        models = sorted({row.setup.shape.name.rpartition("/")[2] for row in own})
        fitted[trainer] = rates._replace(fitted_on=f"{count} rows of {', '.join(models)}")
    return fitted


def unmeasured_spread(rows: Sequence[MeasuredRow]) -> Spread:
    """The spread for a trainer without rows: the largest distance from the published costs, over all trainers, on each
    side."""
    bare = TrainerRates({}, published_costs(), Spread(1.0, 1.0, 0.0))
    residuals: dict[str, list[float]] = {}
    for row in rows:
        residuals.setdefault(row.setup.trainer, []).append(math.log(step_s(row) / estimated_s(row, bare)))
    low = min(float(np.quantile(own, QUANTILES[0])) for own in residuals.values())
    high = max(float(np.quantile(own, QUANTILES[1])) for own in residuals.values())
    return Spread(round(math.exp(low), 3), round(math.exp(high), 3), 0.0)


def toml_of(fitted: dict[str, TrainerRates], unmeasured: Spread) -> str:
    lines = [
        "# Written by bench/fit_throughput.py from registry/measured_rows/throughput.csv. Costs are multiples of the",
        "# ideal time; those of visits and of the step are milliseconds. spread: nine of ten rows, held out by model,",
        "# lie between low and high times the estimate at distance 0 from the nearest row; it grows with the distance.",
        "",
        "[unmeasured]  # trainers without rows: how far all rows lie from the published costs",
        _inline("spread", unmeasured._asdict()),
    ]
    for trainer, rates in fitted.items():
        lines += ["", f"[trainer.{trainer}]", f"rows = {rates.fitted_rows}", f'fitted_on = "{rates.fitted_on}"']
        lines += [f"recompute_share = {rates.recompute_share}", _inline("spread", rates.spread._asdict())]
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
    text = toml_of(fit_all(rows), unmeasured_spread(rows))
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
