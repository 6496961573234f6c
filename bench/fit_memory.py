"""Fits the coefficients of registry/memory.toml to measured rows, for one trainer at a time.

Each coefficient has a prior: its value from counting the operations, and a plausible error. The fit is the most likely
point under the priors and a heavy-tailed error of the logarithm of the peak (Gauss-Newton, pseudo-Huber). "Without each
model" repeats the fit without the rows of one model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from memory_priors import COUNTED, PRIORS, Free, Priors
from memory_rows import DEVELOPMENT, Row, read
from numpy.typing import NDArray

from prime_train.core.units import GIB
from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.memory.training import peak_of

Vector = NDArray[np.float64]


class Sample(NamedTuple):
    """A row in the form that the fit needs."""

    setup: TrainSetup
    measured_bytes: float
    model: str


class Fit(NamedTuple):
    """Values by coefficient and era, and the residuals log(estimate / measured) at them."""

    free: tuple[Free, ...]
    values: Vector
    residuals: Vector


REGISTRY = Path(__file__).resolve().parents[1] / "registry" / "memory.toml"
COVERED = {"ms-swift": 0.95, "hf": 0.95}  # share of unseen models' rows below the bound; 0.98 for others
_MOST_STEPS, _MOST_DAMPINGS = 40, 10
NOISE = 0.03  # scale of an ordinary error of the logarithm


def samples(rows: Sequence[Row]) -> list[Sample]:
    """The rows with a measured peak."""
    return [
        Sample(setup_of(row.run, row.hardware, row.shape), row.measured_gib * GIB, row.shape.name)
        for row in rows
        if row.measured_gib
    ]


def coefficients(free: Sequence[Free], values: Vector, fixed: Mapping[str, float], era: str) -> Coefficients:
    """The coefficients of `era`; later entries of a name replace earlier ones."""
    numbers = dict(fixed)
    for each, value in sorted(zip(free, values, strict=True), key=lambda pair: pair[0].since):
        if each.since <= era:
            numbers[each.name] = float(value)
    return Coefficients(**numbers)


def residuals(rows: Sequence[Sample], of_era: Callable[[str], Coefficients]) -> Vector:
    known = {era: of_era(era) for era in {row.setup.era for row in rows}}
    return np.array([np.log(peak_of(row.setup, known[row.setup.era]).bytes / row.measured_bytes) for row in rows])


class Problem(NamedTuple):
    """Rows, and the coefficients to fit."""

    rows: Sequence[Sample]
    free: tuple[Free, ...]
    fixed: Mapping[str, float]

    def errors(self, values: Vector) -> Vector:
        return residuals(self.rows, lambda era: coefficients(self.free, values, self.fixed, era))

    def far(self, values: Vector) -> Vector:
        """How far each value is from its prior, in spreads."""
        return np.array([(value - each.prior) / each.spread for each, value in zip(self.free, values, strict=True)])

    def loss(self, values: Vector, errors: Vector) -> float:
        return float(np.sum(2 * (np.sqrt(1 + (errors / NOISE) ** 2) - 1)) + np.sum(self.far(values) ** 2))

    def slopes(self, values: Vector, errors: Vector) -> Vector:
        """The numerical derivative of each error by each value. Shape: (rows, values)."""
        columns = []
        for number, each in enumerate(self.free):
            nudged = values.copy()
            nudged[number] += 0.02 * each.spread
            columns.append((self.errors(nudged) - errors) / (0.02 * each.spread))
        return np.stack(columns, axis=1)


def fit(rows: Sequence[Sample], free: Sequence[Free], fixed: Mapping[str, float], start: Vector | None = None) -> Fit:
    """The most likely values. Each step is damped until it lowers the loss; the fit ends when no step does."""
    problem = Problem(rows, tuple(free), fixed)
    spread, low = np.array([each.spread for each in free]), np.array([each.low for each in free])
    values = np.array([each.prior for each in free]) if start is None else start.copy()
    errors = problem.errors(values)
    current, damping = problem.loss(values, errors), 1e-2
    for _ in range(_MOST_STEPS):
        slopes, before = problem.slopes(values, errors), current
        weight = 1 / np.sqrt(1 + (errors / NOISE) ** 2) / NOISE**2
        curve = slopes.T @ (weight[:, None] * slopes) + np.diag(1 / spread**2)
        slope = slopes.T @ (weight * errors) + problem.far(values) / spread
        for _ in range(_MOST_DAMPINGS):
            step = np.linalg.solve(curve + damping * np.diag(np.diag(curve)), -slope)
            tried = np.maximum(values + step, low)
            tried_errors = problem.errors(tried)
            tried_loss = problem.loss(tried, tried_errors)
            if tried_loss < current:
                values, errors, current, damping = tried, tried_errors, tried_loss, max(damping / 4, 1e-6)
                break
            damping *= 4
        if before - current < 1e-3:
            break
    return Fit(problem.free, values, errors)


def without_each_model(rows: Sequence[Sample], fitted: Sequence[Sample], priors: Priors, start: Vector) -> Vector:
    """Residuals of every row under a fit to the `fitted` rows without those of its model."""
    left = np.zeros(len(rows))
    free, fixed = priors.free, priors.fixed
    for model in sorted({row.model for row in rows}):
        seen = [row for row in fitted if row.model != model]
        unseen = [number for number, row in enumerate(rows) if row.model == model]
        found = fit(seen, free, fixed, start=start) if seen else None
        values = found.values if found else np.array([each.prior for each in free])
        held = {era: coefficients(free, values, fixed, era) for era in {row.setup.era for row in rows}}
        left[unseen] = residuals([rows[number] for number in unseen], held.__getitem__)
    return left


def interval(left: Vector, program: str) -> tuple[float, float]:
    """Factors of the estimate between which the measured peaks of unseen models lie."""
    ratios, covered = np.exp(-left), COVERED.get(program, 0.98)
    low, high = float(np.quantile(ratios, 1 - covered)), float(np.quantile(ratios, covered))
    return min(low, 0.97), max(high, 1.03)


def fitted_entry(name: str, priors: Priors, rows: Sequence[Row]) -> tuple[str, Vector]:
    """The lines of a trainer's entry, and the residuals of its rows under fits without their model."""
    chosen = [row for row in rows if row.program in priors.programs and row.measured_gib]
    seen = samples(chosen)
    found = fit(seen, priors.free, priors.fixed)
    left = without_each_model(seen, seen, priors, found.values)
    low, high = interval(left, name)
    numbers = {**priors.fixed, "low": low, "high": high}
    eras: dict[str, dict[str, float]] = {}
    for free, value in zip(found.free, found.values, strict=True):
        (eras.setdefault(free.since, {}) if free.since else numbers)[free.name] = float(value)
    source = f"bench/fit_memory.py on {len(chosen)} measured rows of {', '.join(priors.programs)}"
    families = sorted({row.shape.name.split("/")[-1].split("-")[0].lower() for row in chosen})
    about = {
        "source": source,
        "models": families,
        "checkpointing": sorted({row.setup.checkpointing for row in seen}),
        "compiled": sorted({row.setup.compiled for row in seen}),
    }
    return entry_text(name, about, numbers, eras), left


def entry_text(
    name: str, about: Mapping[str, object], numbers: Mapping[str, float], eras: Mapping[str, Mapping[str, float]]
) -> str:
    """One table of memory.toml. JSON syntax of strings, booleans and lists is also valid TOML."""
    lines = [
        f"[{name}]",
        *(f"{key} = {json.dumps(value)}" for key, value in about.items()),
        "",
        f"[{name}.coefficients]",
    ]
    lines += [f"{key} = {float(f'{value:.4g}')!r}" for key, value in numbers.items()]
    for since, changed in eras.items():
        lines += [
            "",
            f'[{name}.era."{since}"]',
            *(f"{key} = {float(f'{value:.4g}')!r}" for key, value in changed.items()),
        ]
    return "\n".join(lines) + "\n"


HEADER = """\
# The memory coefficients of each trainer, where they differ from the defaults in estimate/memory/coefficients.py.
# Written by bench/fit_memory.py; docs/estimate.md lists the fitted rows.
# The values of an era apply to program versions of that date and later.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=DEVELOPMENT, help="a table of measured rows, CSV")
    parser.add_argument("--write", action="store_true", help="write registry/memory.toml")
    options = parser.parse_args()
    rows, _ = read(options.rows)
    counted = {"source": "counted from src/prime_train/trainer"}
    entries = [entry_text(name, counted, fixed, {}) for name, fixed in COUNTED.items()]
    for name, priors in PRIORS.items():
        entry, left = fitted_entry(name, priors, rows)
        entries.append(entry)
        off = np.abs(np.exp(left) - 1)
        print(f"{name}: {len(left)} rows, unseen models {off.mean():.1%} mean, {np.median(off):.1%} median")
    if options.write:
        beside = REGISTRY.with_suffix(".toml.tmp")
        beside.write_text("\n".join([HEADER, *entries]), encoding="utf-8")
        beside.replace(REGISTRY)


if __name__ == "__main__":
    main()
