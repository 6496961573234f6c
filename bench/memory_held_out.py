"""Estimates rows by fits that saw no row of their table, with intervals from the errors of other tables.

A program without measured rows has the coefficients of another one, and the interval of such programs.

So coefficients and interval of a row are both from elsewhere: what a user with other settings and versions gets. The
errors are those of the jackknife+ (arXiv 1905.02928): each row's under a fit without its own model or table. A program
whose only table is left out is one without rows: its coefficients are the counted ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import fit_memory
from fit_memory import Errors, Fitting, Sample
from memory_priors import PRIORS
from memory_rows import Row, fitted_rows

from prime_train.estimate.memory.coefficients import Fitted, fitted_entry
from prime_train.estimate.memory.setup_from_recipe import program_table
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.values import RoleMemory

Fits = dict[str, tuple[list[Sample], Fitting]]


def held_out(rows: Sequence[Row]) -> dict[str, RoleMemory]:
    """Row id -> its memory. Rows of a program without a fit, such as nanochat, are left out."""
    fits = fit_memory.fit_all(fitted_rows())
    of_tables = {
        name: fit_memory.errors_without_each("source", *pair)
        for name, pair in fits.items()
        if fit_memory.tables_of(pair[0]) > 1
    }
    found: dict[str, RoleMemory] = {}
    for name, priors in PRIORS.items():
        others = fit_memory.other_trainers(of_tables, name)
        models = fit_memory.errors_without_each("model", *fits[name])
        chosen = [row for row in rows if _entry_of(row.program) == name]
        for source in sorted({row.source for row in chosen}):
            errors = Elsewhere(
                [error for error in models if error.source != source],
                [error for error in of_tables.get(name, ()) if error.source != source],
                others,
            )
            held, entry = _without(source, fits[name], errors)
            unknown = fit_memory.interval_of_unknown(fits, source)
            ends = dict.fromkeys(entry.intervals, unknown) | {"cached": entry.intervals["cached"]}
            wide = entry._replace(intervals=ends)
            for row in (row for row in chosen if row.source == source):
                found[row.id] = _memory(row, held, entry if row.program in priors.programs else wide)
    return found


def _entry_of(program: str) -> str:
    """The entry of memory.toml whose coefficients a program has."""
    own = next((name for name, priors in PRIORS.items() if program in priors.programs), None)
    return own or str(program_table(program)["like"])


class Elsewhere(NamedTuple):
    """The errors of left-out models and tables of one trainer, and of tables of other trainers."""

    models: Errors
    tables: Errors
    others: Sequence[Errors]


def _without(source: str, fitted: tuple[list[Sample], Fitting], errors: Elsewhere) -> tuple[Fitting, Fitted]:
    """The fit and the entry that the registry would have without a table."""
    seen, whole = fitted
    dropped = frozenset({("source", source)})
    held = fit_memory.fit_without(seen, whole, dropped)
    kept = [row for row in seen if row.source != source]
    unknown = fitted_entry("a program without rows", "").intervals["any"]
    entry = Fitted(held.of_era(""), source, (), {"any": unknown, "cached": unknown})
    entry = entry._replace(allocated=whole.priors.figure == "allocated")
    own = {row.source for row in kept if row.figure == whole.priors.figure}
    if not own:
        return held, entry
    ends = {"cached": unknown} | fit_memory.intervals(*errors, len(own))
    about = fit_memory.about_rows(kept)
    return held, entry._replace(
        models=tuple(about["models"]),
        intervals=ends,
        programs=tuple(about["programs"]),
        features=frozenset(about["features"]),
        most_tokens=about["most_tokens"],
        most_vocab=about["most_vocab"],
    )


def _memory(row: Row, held: Fitting, entry: Fitted) -> RoleMemory:
    setup = setup_of(row.run, row.hardware, row.shape)
    return training_memory(setup, row.hardware, entry._replace(coefficients=held.of_era(setup.era)))
