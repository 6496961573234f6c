"""Fits the coefficients of registry/memory.toml to measured rows, for one trainer at a time.

Each coefficient has a prior: its value from counting the operations, and a plausible error. The fit is the most likely
point under the priors and a heavy-tailed error of the logarithm of the peak (Gauss-Newton, pseudo-Huber). The interval
of a trainer and a method is conformal: a quantile of the errors of models that the fit had not seen.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from memory_priors import COUNTED, PRIORS, Free, Priors
from memory_rows import Row, fitted_rows
from numpy.typing import NDArray

from prime_train.core.units import GIB
from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.memory.training import method_of, peak_of
from prime_train.estimate.verdict import COVERED

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
_MOST_STEPS, _MOST_DAMPINGS = 40, 10
_MOST_STEPS_FROM_A_FIT = 8
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


def fit(
    rows: Sequence[Sample],
    free: Sequence[Free],
    fixed: Mapping[str, float],
    start: Vector | None = None,
    most_steps: int = _MOST_STEPS,
) -> Fit:
    """The most likely values. Each step is damped until it lowers the loss; the fit ends when no step does."""
    problem = Problem(rows, tuple(free), fixed)
    spread, low = np.array([each.spread for each in free]), np.array([each.low for each in free])
    values = np.array([each.prior for each in free]) if start is None else start.copy()
    errors = problem.errors(values)
    current, damping = problem.loss(values, errors), 1e-2
    for _ in range(most_steps):
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


def without_models(rows: Sequence[Sample], priors: Priors, start: Vector, models: frozenset[str]) -> Fitting:
    """The fit without the rows of `models`, from the values with them."""
    key = priors.programs, models
    if key not in _held:
        seen = [row for row in rows if row.model not in models]
        values = np.array(_priors_of(priors))
        if seen:
            values = fit(seen, priors.free, priors.fixed, start, _MOST_STEPS_FROM_A_FIT).values
        _held[key] = Fitting(priors, values)
    return _held[key]


def _priors_of(priors: Priors) -> list[float]:
    return [each.prior for each in priors.free]


class Fitting(NamedTuple):
    """The values of one trainer's coefficients."""

    priors: Priors
    values: Vector

    def of_era(self, era: str) -> Coefficients:
        return coefficients(self.priors.free, self.values, self.priors.fixed, era)


_held: dict[tuple[tuple[str, ...], frozenset[str]], Fitting] = {}  # fits without models, which several callers need


def fit_all(rows: Sequence[Row]) -> dict[str, tuple[list[Sample], Fitting]]:
    """Entry -> its rows with a measured peak, and the fit to all of them."""
    found = {}
    for name, priors in PRIORS.items():
        seen = samples([row for row in rows if row.program in priors.programs])
        found[name] = seen, Fitting(priors, fit(seen, priors.free, priors.fixed).values)
    return found


def errors_without_each_model(rows: Sequence[Sample], whole: Fitting, also: frozenset[str] = frozenset()) -> Errors:
    """The error of each row under a fit without its model, for rows of models that are not in `also`, which no fit
    sees."""
    found: list[Error] = []
    for model in sorted({row.model for row in rows} - also):
        held = without_models(rows, whole.priors, whole.values, also | {model})
        unseen = [row for row in rows if row.model == model]
        ratios = np.exp(-residuals(unseen, held.of_era))
        found += [Error(method_of(row.setup), float(ratio)) for row, ratio in zip(unseen, ratios, strict=True)]
    return found


class Error(NamedTuple):
    """The measured peak of a row as a multiple of its estimate."""

    method: str
    ratio: float


Errors = list[Error]


def intervals(errors: Errors, all_errors: Errors) -> dict[str, tuple[float, float]]:
    """Method -> the conformal interval of a trainer; a method with too few rows has none, and "any" is for all rows.

    A trainer with too few rows has the interval of all trainers, widened to its own largest errors.
    Source: split conformal prediction, arXiv 1604.04173; the errors are those of left-out models (arXiv 1905.02928).
    """
    own, pooled = [error.ratio for error in errors], conformal([error.ratio for error in all_errors])
    found = {"any": conformal(own)}
    if found["any"] is None and pooled is not None:
        found["any"] = min([pooled[0], *own]), max([pooled[1], *own])
    for method in sorted({error.method for error in errors}):
        found[method] = conformal([error.ratio for error in errors if error.method == method])
    return {method: ends for method, ends in found.items() if ends is not None}


def conformal(ratios: Sequence[float]) -> tuple[float, float] | None:
    """Factors of an estimate: a new ratio is above the lower and below the upper one with a probability of 95 % each.

    None for fewer than 19 ratios, because even the largest of them is no such bound.
    """
    count = len(ratios)
    rank = math.ceil((count + 1) * COVERED - 1e-9)
    if rank > count:
        return None
    ordered = sorted(ratios)
    return min(ordered[count - rank], 0.97), max(ordered[rank - 1], 1.03)


def entry_of(name: str, seen: Sequence[Sample], whole: Fitting, ends: Mapping[str, tuple[float, float]]) -> str:
    """The lines of a trainer's entry."""
    numbers = dict(whole.priors.fixed)
    eras: dict[str, dict[str, float]] = {}
    for free, value in zip(whole.priors.free, whole.values, strict=True):
        (eras.setdefault(free.since, {}) if free.since else numbers)[free.name] = float(value)
    about = {
        "source": f"bench/fit_memory.py on {len(seen)} measured rows of {', '.join(whole.priors.programs)}",
        "models": sorted({row.model.split("/")[-1].split("-")[0].lower() for row in seen}),
        "checkpointing": sorted({row.setup.checkpointing for row in seen}),
        "compiled": sorted({row.setup.compiled for row in seen}),
    }
    return entry_text(name, about, numbers, eras, ends)


def entry_text(
    name: str,
    about: Mapping[str, object],
    numbers: Mapping[str, float],
    eras: Mapping[str, Mapping[str, float]],
    ends: Mapping[str, tuple[float, float]],
) -> str:
    """One table of memory.toml. JSON syntax of strings, booleans and lists is also valid TOML."""
    lines = [
        f"[{_quoted(name)}]",
        *(f"{key} = {json.dumps(value)}" for key, value in about.items()),
        "",
        f"[{_quoted(name)}.interval]",
        *(f"{method} = [{_digits(low)}, {_digits(high)}]" for method, (low, high) in ends.items()),
        "",
        f"[{_quoted(name)}.coefficients]",
    ]
    lines += [f"{key} = {_digits(value)}" for key, value in numbers.items()]
    for since, changed in eras.items():
        lines += [
            "",
            f'[{_quoted(name)}.era."{since}"]',
            *(f"{key} = {_digits(value)}" for key, value in changed.items()),
        ]
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return json.dumps(name) if "." in name else name


def _digits(value: float) -> str:
    return repr(float(f"{value:.4g}"))


HEADER = """\
# The memory coefficients of each trainer, where they differ from the defaults in estimate/memory/coefficients.py.
# Written by bench/fit_memory.py; docs/estimate.md lists the fitted rows.
# The values of an era apply to program versions of that date and later.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write registry/memory.toml")
    options = parser.parse_args()
    fits = fit_all(fitted_rows())
    errors = {name: errors_without_each_model(seen, whole) for name, (seen, whole) in fits.items()}
    every = [error for each in errors.values() for error in each]
    elsewhere = [row for name, (seen, _) in fits.items() if name not in ("hf", "prime-rl") for row in seen]
    of_others = np.exp(-residuals(elsewhere, fits["hf"][1].of_era))
    entries = []
    for name, (source, numbers) in COUNTED.items():
        ends = {"any": conformal([error.ratio for error in every]) or (0.0, 2.0)}
        entries.append(entry_text(name, {"source": source}, numbers, {}, ends))
    for name, (seen, whole) in fits.items():
        ends = intervals(errors[name], every)
        if name == "hf":  # a program without rows: other programs under these coefficients
            ends["unknown"] = conformal([float(ratio) for ratio in of_others]) or ends["any"]
        entries.append(entry_of(name, seen, whole, ends))
        off = np.array([abs(1 / error.ratio - 1) for error in errors[name]])
        print(f"{name}: {len(off)} rows, unseen models {off.mean():.1%} mean, {np.median(off):.1%} median, {ends}")
    if options.write:
        beside = REGISTRY.with_suffix(".toml.tmp")
        beside.write_text("\n".join([HEADER, *entries]), encoding="utf-8")
        beside.replace(REGISTRY)


if __name__ == "__main__":
    main()
