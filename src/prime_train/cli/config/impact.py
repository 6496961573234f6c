"""Computes by the estimator what each difference of two configs does to memory and speed. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prime_train.cli.estimate import inputs
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.config import recipe, run_toml
from prime_train.config.compare import split_key
from prime_train.config.differences import Difference
from prime_train.config.foreign.recipe.draft import read_run
from prime_train.config.foreign.values import ForeignPart, PartialValues
from prime_train.config.parsed_config import Reading
from prime_train.config.prime_rl import read as prime_rl_files
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.translate import root_in, translate
from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.estimate.estimate import estimate
from prime_train.estimate.values import Hardware
from prime_train.toml.document import patched
from prime_train.views.config.differences import ConfigImpact

MOST = 40  # differences that are estimated one by one


class _Figures(NamedTuple):
    gib: float | None  # on GPU 0
    tokens_per_s: float | None


def compute_total(before: Reading, after: Reading, options: EstimateOptions) -> ConfigImpact:
    """What all differences do together. Raises UserError if one of the two cannot be estimated."""
    hardware = inputs.find_gpus(options)
    return _compare(_estimate(before, hardware, options), _estimate(after, hardware, options))


def compute_impacts(
    before: Reading, after: Reading, found: Sequence[Difference], options: EstimateOptions
) -> Iterator[tuple[str, ConfigImpact]]:
    """(key, impact) of each of the first MOST differences with which the first config can be estimated alone."""
    base = _in_newer_generation(before, after)
    if base is None:
        return
    hardware = inputs.find_gpus(options)
    own = _estimate(base, hardware, options)
    for one in found[:MOST]:
        try:
            changed = _change(base, one)
            if changed.run is not None and changed.run != base.run and len(changed.faults) <= len(base.faults):
                yield one.key, _compare(own, _estimate(changed, hardware, options))
        except (UserError, AttributeError, KeyError, IndexError, TypeError, ValueError):
            continue  # it is no config without the other changes, or the key names an entry of a list


def _in_newer_generation(before: Reading, after: Reading) -> Reading | None:
    """The first config under the keys of the differences; None for two formats."""
    if before.dialect != after.dialect:
        return None
    if before.dialect != prime_rl_files.DIALECT or before.generation >= after.generation:
        return before
    generation = load(after.generation)
    if root_in(generation, before.root) is None:
        return None
    own = {key: value for key, value in before.document.values.items() if key == prime_rl_files.OWN_TABLE}
    values = translate(before, generation) | own
    return prime_rl_files.read((before.document._replace(values=values),), after.generation)


def _change(reading: Reading, change: Difference) -> Reading:
    """The reading with one other value."""
    if reading.foreign is not None:
        return _change_part(reading, reading.foreign, change)
    document = reading.document._replace(values=patched(reading.document.values, {change.key: change.after}))
    if reading.dialect == prime_rl_files.DIALECT:
        return prime_rl_files.read((document,), reading.generation)
    return recipe.read_document(document) if reading.dialect == recipe.DIALECT else run_toml.read_document(document)


def _change_part(reading: Reading, parts: Sequence[ForeignPart], change: Difference) -> Reading:
    """The reading of another program's file with one other value, in the part that the key names."""
    named, key = split_key(parts, change.key)
    values = PartialValues(patched(parts[named].values, {key: change.after}))
    values.is_partial = getattr(parts[named].values, "is_partial", False)
    changed = (*parts[:named], parts[named]._replace(values=values), *parts[named + 1 :])
    return read_run(reading._replace(foreign=changed, run=None))


def _estimate(reading: Reading, hardware: Hardware, options: EstimateOptions) -> _Figures:
    run = inputs.check_run(reading)
    draft = inputs.draft_of(reading, hardware.gpus)
    shape = inputs.find_shape(run, reading, options)
    found = estimate(run if draft is None else draft.run, hardware, shape)
    # GPU 0 is the trainer's, and also the server's where they share it.
    roles = [role.memory for role in found.memory.roles]
    sharing = roles if found.memory.sharing is not None else roles[:1]
    speed = None if found.time is None else found.time.throughput.tokens_per_s.typical
    return _Figures(sum(role.need.typical for role in sharing) / GIB if roles else None, speed)


def _compare(before: _Figures, after: _Figures) -> ConfigImpact:
    more = None if before.gib is None or after.gib is None else after.gib - before.gib
    known = before.tokens_per_s and after.tokens_per_s
    return ConfigImpact(more, after.tokens_per_s / before.tokens_per_s if known else None)  # type: ignore[operator]
