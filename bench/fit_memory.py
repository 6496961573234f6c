"""Fits the coefficients of registry/memory.toml to measured rows, for one trainer at a time.

Each coefficient has a prior: its value from counting the operations, and a plausible error. The fit is the most likely
point under the priors and a heavy-tailed error of the logarithm of the peak (Gauss-Newton, pseudo-Huber). The interval
of a trainer and a method is conformal: a quantile of the errors of models and of tables that the fit had not seen.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from memory_priors import COMPARED, COUNTED, LIKE_ANOTHER, PRIORS, Free, Priors
from memory_rows import Row, fitted_rows
from numpy.typing import NDArray

from prime_train.core.units import GIB
from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup, features_of
from prime_train.estimate.memory.training import cached_term, outside_terms, peak_of
from prime_train.estimate.verdict import COVERED

Vector = NDArray[np.float64]


class Sample(NamedTuple):
    """A row in the form that the fit needs. `figure`: the memory that was measured; `shown_bytes`: by nvidia-smi."""

    setup: TrainSetup
    measured_bytes: float
    model: str
    source: str = ""
    figure: str = "reserved"
    shown_bytes: float = 0.0

    def is_any_of(self, dropped: Dropped) -> bool:
        return ("model", self.model) in dropped or ("source", self.source) in dropped


Dropped = frozenset[tuple[str, str]]  # ("model", name) or ("source", table): rows that a fit does not see


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
        Sample(
            setup_of(row.run, row.hardware, row.shape),
            row.measured_gib * GIB,
            row.shape.name,
            row.source,
            row.figure,
            (row.shown_gib or 0.0) * GIB,
        )
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


def fit_without(rows: Sequence[Sample], whole: Fitting, dropped: Dropped) -> Fitting:
    """The fit without the dropped rows, from the values with them; the priors if no row is left."""
    key = whole.priors.programs, dropped
    if key not in _held:
        seen = [row for row in rows if row.figure == whole.priors.figure and not row.is_any_of(dropped)]
        values = np.array([each.prior for each in whole.priors.free])
        if seen:
            values = fit(seen, whole.priors.free, whole.priors.fixed, whole.values, _MOST_STEPS_FROM_A_FIT).values
        _held[key] = Fitting(whole.priors, values)
    return _held[key]


class Fitting(NamedTuple):
    """The values of one trainer's coefficients."""

    priors: Priors
    values: Vector

    def of_era(self, era: str) -> Coefficients:
        return coefficients(self.priors.free, self.values, self.priors.fixed, era)


_held: dict[tuple[tuple[str, ...], Dropped], Fitting] = {}  # fits without rows, which several callers need


def fit_all(rows: Sequence[Row]) -> dict[str, tuple[list[Sample], Fitting]]:
    """Entry -> its rows with a measured peak, and the fit to those of them that have its figure."""
    found = {}
    for name, priors in PRIORS.items():
        seen = samples([row for row in rows if row.program in priors.programs])
        fitted = [row for row in seen if row.figure == priors.figure]
        found[name] = seen, Fitting(priors, fit(fitted, priors.free, priors.fixed).values)
    return found


def errors_without_each(kind: str, rows: Sequence[Sample], whole: Fitting) -> Errors:
    """The error of each row under a fit without its model or its table (`kind`)."""
    found: Errors = []
    for name in sorted({getattr(row, kind) for row in rows}):
        held = fit_without(rows, whole, frozenset({(kind, name)}))
        for row in (row for row in rows if getattr(row, kind) == name):
            found += errors_of(row, held.of_era(row.setup.era), whole.priors.figure)
    return found


def errors_of(row: Sample, k: Coefficients, figure: str) -> Errors:
    """The error of a row in the figure of its entry, or else in the reserved memory; both, if it has both."""
    peak = peak_of(row.setup, k)
    with_cached = peak.bytes + cached_term(peak.terms, k).bytes
    if row.figure == figure:
        found = [Error(row.setup.method, row.measured_bytes / peak.bytes, row.source)]
    else:
        found = [Error("cached", row.measured_bytes / with_cached, row.source)]
    if row.shown_bytes:
        outside = sum(term.bytes for term in outside_terms(row.setup))
        found.append(Error("cached", (row.shown_bytes - outside) / with_cached, row.source))
    return found


class Error(NamedTuple):
    """The measured peak of a row as a multiple of its estimate. `source`: the table of the row."""

    method: str
    ratio: float
    source: str = ""


Errors = list[Error]


_OWN_TABLES = 3  # from so many on, the errors of a trainer's own left-out tables say what another one will be like


def intervals(models: Errors, tables: Errors, others: Sequence[Errors], count: int) -> dict[str, tuple[float, float]]:
    """Method -> the interval of a trainer; a method with too few rows has none, and "any" is for all rows.

    It holds the errors of left-out models and those of left-out tables: `tables` of the trainer itself if it has
    enough of them (`count`), else also those of each trainer in `others`, because another table has other versions,
    data and settings that nobody wrote down.
    Source: split conformal prediction, arXiv 1604.04173; the errors are those of left-out groups (arXiv 1905.02928).
    """
    found = {"any": _most(models)}
    widest = [_most(tables)]
    if count < _OWN_TABLES:
        widest += [_most(each) for each in others]
    for method in sorted({error.method for error in models}):
        of_method = conformal([error.ratio for error in models if error.method == method])
        if of_method is not None:
            found[method] = of_method
    return {method: _hull([ends, *widest]) if method != "cached" else ends for method, ends in found.items()}


def _most(errors: Errors) -> tuple[float, float]:
    """The conformal interval of the main figure; with too few rows, the largest errors."""
    ratios = [error.ratio for error in errors if error.method != "cached"]
    return conformal(ratios) or (min([0.97, *ratios]), max([1.03, *ratios]))


def _hull(every: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in every), max(high for _, high in every)


def other_trainers(of_tables: Mapping[str, Errors], name: str) -> list[Errors]:
    """The errors of left-out tables of other trainers; not of prime-rl, whose benchmarks write down all settings."""
    return [errors for other, errors in of_tables.items() if other not in (name, "prime-rl")]


def tables_of(rows: Sequence[Sample]) -> int:
    return len({row.source for row in rows})


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


def interval_of_unknown(fits: Mapping[str, tuple[list[Sample], Fitting]], without: str = "") -> tuple[float, float]:
    """The interval of a program without rows: those of other programs under the coefficients of "hf".

    `without`: a table that neither the coefficients nor the errors may see.
    """
    seen, whole = fits["hf"]
    held = fit_without(seen, whole, frozenset({("source", without)})) if without else whole
    elsewhere = [row for name, (rows, _) in fits.items() if name not in ("hf", "prime-rl") for row in rows]
    kept = [row for row in elsewhere if row.source != without]
    found = [error for row in kept for error in errors_of(row, held.of_era(row.setup.era), row.figure)]
    return conformal([error.ratio for error in found if error.method != "cached"]) or (0.5, 2.0)


def entry_of(name: str, seen: Sequence[Sample], whole: Fitting, ends: Mapping[str, tuple[float, float]]) -> str:
    """The lines of a trainer's entry."""
    numbers = dict(whole.priors.fixed)
    eras: dict[str, dict[str, float]] = {}
    for free, value in zip(whole.priors.free, whole.values, strict=True):
        (eras.setdefault(free.since, {}) if free.since else numbers)[free.name] = float(value)
    fitted = sum(row.figure == whole.priors.figure for row in seen)
    source = f"bench/fit_memory.py on {fitted} measured rows of {', '.join(whole.priors.programs)}"
    about = {"source": source, **about_rows(seen), "allocated": whole.priors.figure == "allocated"}
    return entry_text(name, about, numbers, eras, ends)


def about_rows(seen: Sequence[Sample]) -> dict[str, Any]:
    """What the rows have: an estimate of anything else has a wider interval."""
    return {
        "programs": sorted({row.setup.program for row in seen}),
        "models": sorted({row.model.split("/")[-1].split("-")[0].lower() for row in seen}),
        "features": sorted({feature for row in seen for feature in features_of(row.setup)}),
        "most_tokens": max((row.setup.tokens for row in seen), default=0),
        "most_vocab": max((row.setup.shape.vocab_size for row in seen), default=0),
    }


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
    errors = {name: errors_without_each("model", *pair) for name, pair in fits.items()}
    of_tables = {name: errors_without_each("source", *pair) for name, pair in fits.items() if tables_of(pair[0]) > 1}
    unknown = interval_of_unknown(fits)
    entries = []
    for name, (source, numbers) in COUNTED.items():
        every = [error.ratio for each in errors.values() for error in each if error.method != "cached"]
        ends = {"any": conformal(every) or unknown}
        about = {"source": source} | ({"compared": True} if name in COMPARED else {})
        entries.append(entry_text(name, about, numbers, {}, ends))
    for name, (seen, whole) in fits.items():
        own = len({row.source for row in seen if row.figure == whole.priors.figure})
        ends = intervals(errors[name], of_tables.get(name, []), other_trainers(of_tables, name), own)
        if name == "hf":  # a program without rows: other programs under these coefficients
            ends["unknown"] = unknown
        entries.append(entry_of(name, seen, whole, ends))
        for kind, found in (("models", errors[name]), ("tables", of_tables.get(name, []))):
            off = np.array([abs(1 / error.ratio - 1) for error in found if error.method != "cached"])
            if len(off):
                print(f"{name}: {len(off)} rows, unseen {kind} {off.mean():.1%} mean, {np.median(off):.1%} median")
        print(f"{name}: {ends}")
    for name, (like, source, changed) in LIKE_ANOTHER.items():
        numbers = fits[like][1].of_era("")._asdict() | changed
        given = {key: value for key, value in numbers.items() if value != Coefficients._field_defaults[key]}
        about = {"source": source, "allocated": PRIORS[like].figure == "allocated"}
        entries.append(entry_text(name, about, given, {}, {"any": unknown, "cached": unknown}))
    if options.write:
        beside = REGISTRY.with_suffix(".toml.tmp")
        beside.write_text("\n".join([HEADER, *entries]), encoding="utf-8")
        beside.replace(REGISTRY)


if __name__ == "__main__":
    main()
