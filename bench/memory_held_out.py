"""Estimates rows by fits that saw no row of their model, with intervals from models that these fits did not see either.

So coefficients and interval of a row are both from other models: what a user with a new model gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import fit_memory
from fit_memory import Errors, Fitting, Sample
from memory_priors import PRIORS
from memory_rows import Row, fitted_rows

from prime_train.estimate.memory.coefficients import fitted_entry
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.values import RoleMemory

Fits = dict[str, tuple[list[Sample], Fitting]]


def held_out(rows: Sequence[Row]) -> dict[str, RoleMemory]:
    """Row id -> its memory. Rows of a program without a fit are left out."""
    fits = fit_memory.fit_all(fitted_rows())
    errors = {name: fit_memory.errors_without_each_model(*pair) for name, pair in fits.items()}
    found: dict[str, RoleMemory] = {}
    for name, priors in PRIORS.items():
        of_others = [error for other, each in errors.items() if other != name for error in each]
        chosen = [row for row in rows if row.program in priors.programs]
        for model in sorted({row.shape.name for row in chosen}):
            of_model = [row for row in chosen if row.shape.name == model]
            found |= _without(model, of_model, fits[name], of_others)
    return found


def _without(
    model: str, rows: Sequence[Row], fitted: tuple[list[Sample], Fitting], of_others: Errors
) -> dict[str, RoleMemory]:
    seen, whole = fitted
    others = [row for row in seen if row.model != model]
    held = fit_memory.without_models(seen, whole.priors, whole.values, frozenset({model}))
    errors = fit_memory.errors_without_each_model(seen, whole, frozenset({model}))
    ends = fit_memory.intervals(errors, [*errors, *of_others])
    families = tuple({row.model.split("/")[-1].split("-")[0].lower() for row in others})
    found = {}
    for row in rows:
        setup = setup_of(row.run, row.hardware, row.shape)
        entry = fitted_entry(setup.program, setup.era)
        entry = entry._replace(coefficients=held.of_era(setup.era), intervals=ends, models=families)
        found[row.id] = training_memory(setup, row.hardware, entry)
    return found
