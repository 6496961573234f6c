"""Tries changes to a run that does not fit and reports what each saves; finds the smallest number of GPUs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prime_train.core.units import format_bytes
from prime_train.estimate.calibrate import Calibration, calibrate_memory
from prime_train.estimate.candidate_changes import (
    TABLES,
    Change,
    Value,
    apply_changes,
    serving_changes,
    training_changes,
    value_of,
)
from prime_train.estimate.memory.roles import Memory, Sharing, memory_of
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_memory import inference_memory, smallest_fraction
from prime_train.estimate.serving.server_setup import serve_setup_of
from prime_train.estimate.values import Hardware, find_largest
from prime_train.spec import RunSpec
from prime_train.toml.document import to_toml

_LEAST_SAVING = 0.01  # share of the needed bytes; a change that saves less is not listed
_STEP_TOKENS = 256
_MOST_GPUS = 1024


class Fit(NamedTuple):
    """Bytes needed on one GPU, and bytes that may be used there."""

    needed_bytes: float
    limit_bytes: float

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.limit_bytes

    @property
    def missing_bytes(self) -> float:
        """Negative if the run fits."""
        return self.needed_bytes - self.limit_bytes


class Advice(NamedTuple):
    """A tried change. `saving_bytes`: by how much it lowers the missing bytes; `fits`: whether that is enough."""

    assignments: tuple[tuple[str, Value], ...]
    costs: str
    saving_bytes: float
    fits: bool

    def text(self, key: Callable[[str], str] = str) -> str:
        """One line of advice. `key` maps a RunSpec field to the key in the user's file."""
        set_to = ", ".join(_assignment(field, key(field), value) for field, value in self.assignments)
        verdict = "then it fits" if self.fits else "not enough alone"
        return f"{set_to} (saves {format_bytes(self.saving_bytes)} per GPU; {verdict}; costs: {self.costs})"


FitOf = Callable[[RunSpec], Fit]


def trainer_fit(hardware: Hardware, shape: ModelShape, calibration: Calibration | None = None) -> FitOf:
    """The fit of the trainer: the upper bound plus memory outside the allocator, against the memory torch can see."""

    def fit(run: RunSpec) -> Fit:
        memory = training_memory(setup_of(run, hardware, shape), hardware)
        return Fit(calibrate_memory(memory, calibration).needed_bytes, hardware.usable_bytes)

    return fit


def server_fit(hardware: Hardware, shape: ModelShape) -> FitOf:
    """The fit of the server: the memory it needs to start with one full-length request, against its fraction.

    CUDA graphs outside the fraction count too, if the rest of the GPU has no room for them.
    """

    def fit(run: RunSpec) -> Fit:
        setup = serve_setup_of(run, hardware, shape)
        needed = smallest_fraction(setup, hardware, setup.ctx_tokens, 1) * hardware.usable_bytes
        outside = inference_memory(setup, hardware).memory.needed_bytes - hardware.usable_bytes
        limit = setup.gpu_memory_fraction * hardware.usable_bytes
        return Fit(max(needed, limit + outside), limit)

    return fit


def advise_training(run: RunSpec, fit_of: FitOf, has: Callable[[str], bool] = bool) -> tuple[Advice, ...]:
    """Advice for the training of a run, the cheapest change first; () if it fits. `has(field)`: the user's file format
    has a key for the field."""
    return _advise(run, fit_of, training_changes(run), has)


def advise_serving(
    run: RunSpec, hardware: Hardware, shape: ModelShape, has: Callable[[str], bool] = bool
) -> tuple[Advice, ...]:
    """Advice for the server of a run; () if it starts."""
    setup = serve_setup_of(run, hardware, shape)
    changes = serving_changes(run, setup.sequences, setup.ctx_tokens)
    return _advise(run, server_fit(hardware, shape), changes, has)


def smallest_gpus(run: RunSpec, fit_of: FitOf) -> int | None:
    """The smallest power of two of GPUs on which the training fits with the model sharded over all of them.

    None if 1024 are too few, because activations do not shrink with shards.
    """
    powers = (2**power for power in range(_MOST_GPUS.bit_length()))
    return next((gpus for gpus in powers if fit_of(with_gpus(run, gpus)).fits), None)


def with_gpus(run: RunSpec, gpus: int) -> RunSpec:
    """The run with its training sharded over `gpus` GPUs."""
    if run.recipe is not None:
        sharding = "fsdp" if gpus > 1 and run.recipe.sharding in (None, "none", "ddp") else run.recipe.sharding
        recipe = run.recipe._replace(gpus=gpus, sharding=sharding, shards=None, replicas=None)
        return dataclasses.replace(run, recipe=recipe)
    if run.config_format == "run.toml":
        layout = (("parallel.processes", gpus), ("parallel.dp_replicate", 1), ("parallel.dp_shard", gpus))
        return apply_changes(run, layout)
    return apply_changes(run, (*_deployment_settings(run, gpus), ("trainer.dp_replicate", 1)))


def _deployment_settings(run: RunSpec, gpus: int) -> Iterator[tuple[str, Value]]:
    """The prime-rl settings that give `gpus` GPUs to the trainer: their number, their ids (2026-01), or nodes."""
    yield "deployment.train_gpus", gpus
    deployment = run.deployment
    if deployment is None:
        return
    if deployment.train_gpu_ids is not None:
        taken = deployment.infer_gpu_ids or ()
        free = (number for number in range(gpus + len(taken)) if number not in taken)
        yield "deployment.train_gpu_ids", tuple(islice(free, gpus))
    if deployment.kind == "multi_node" and deployment.gpus_per_node:
        yield "deployment.train_nodes", -(-gpus // deployment.gpus_per_node)


def _advise(run: RunSpec, fit_of: FitOf, possible: Iterable[Change], has: Callable[[str], bool]) -> tuple[Advice, ...]:
    """Each change alone; then, if none is enough, the first changes that are enough together."""
    before = fit_of(run)
    if before.fits:
        return ()
    changes = tuple(change for change in possible if all(has(field) for field, _ in change.assignments))
    tried = [_try_change(run, before, fit_of, change) for change in changes]
    alone = tuple(advice for advice in tried if advice.saving_bytes > _LEAST_SAVING * before.needed_bytes)
    if any(advice.fits for advice in alone):
        return alone
    combined = _combine_changes(run, before, fit_of, changes)
    return alone if combined is None else (*alone, combined)


def _try_change(run: RunSpec, before: Fit, fit_of: FitOf, change: Change) -> Advice:
    assignments = _choose_number(run, fit_of, change)
    after = fit_of(apply_changes(run, assignments))
    return Advice(assignments, change.costs, before.missing_bytes - after.missing_bytes, after.fits)


def _choose_number(run: RunSpec, fit_of: FitOf, change: Change) -> tuple[tuple[str, Value], ...]:
    """The assignments with their number chosen: the largest that fits, or the smallest if none does."""
    if change.least is None:
        return change.assignments
    (field, top), *rest = change.assignments
    step = _STEP_TOKENS if field.endswith("ctx_tokens") else 1
    assert isinstance(top, int)  # only a whole number has a least

    def fits(steps: int) -> bool:
        return fit_of(apply_changes(run, ((field, steps * step), *rest))).fits

    number = max(change.least, step * find_largest(change.least // step, top // step, fits))
    while change.divides and number > 1 and change.divides % number:
        number -= 1
    return ((field, number), *rest)


def _combine_changes(run: RunSpec, before: Fit, fit_of: FitOf, changes: tuple[Change, ...]) -> Advice | None:
    """The first changes, applied one after another until the run fits; None if it never does."""
    so_far, gap, costs = run, before, []
    assignments: dict[str, Value] = {}
    for change in changes:
        chosen = _choose_number(so_far, fit_of, change)
        following = apply_changes(so_far, chosen)
        after = fit_of(following)
        if after.missing_bytes >= gap.missing_bytes:
            continue
        so_far, gap = following, after
        assignments.update({field: value for field, value in chosen if value_of(run, field) != value})
        costs.append(change.costs)
        if after.fits:
            saving_bytes = before.missing_bytes - after.missing_bytes
            return Advice(tuple(assignments.items()), "; ".join(costs), saving_bytes, fits=True)
    return None


def _assignment(field: str, key: str, value: Value) -> str:
    return f"[{key}]" if field in TABLES and key != field else f"{key} = {to_toml(value)}"


class Keys(NamedTuple):
    """Maps RunSpec fields to the user's file: `key` is the name of a field there, `has` whether it has one."""

    key: Callable[[str], str]
    has: Callable[[str], bool]


class Case(NamedTuple):
    """A run and the hardware it does not fit on."""

    run: RunSpec
    hardware: Hardware
    shape: ModelShape
    memory: Memory
    calibration: Calibration | None = None


def advise(case: Case, keys: Keys) -> tuple[str, ...]:
    """Lines of advice, the cheapest change first; () if the run fits."""
    memory = case.memory
    if memory.fits:
        return ()
    more_gpus = f"--gpus {memory.gpus.all}x{case.hardware.id}: the config needs {memory.gpus.all} GPUs"
    lines = () if memory.enough_gpus else (f"{more_gpus}; or set fewer in the config",)
    if all(role.fits for role in memory.roles):
        return lines
    return (*lines, *(_advise_roles(case, keys) if memory.sharing is None else _advise_sharing(memory.sharing, keys)))


def _advise_roles(case: Case, keys: Keys) -> Iterator[str]:
    """Advice for each role that does not fit on its own GPUs."""
    for role in case.memory.roles:
        if role.fits:
            continue
        if role.served is not None:
            found = advise_serving(case.run, case.hardware, case.shape, keys.has)
            yield from (item.text(keys.key) for item in found)
            continue
        fit = trainer_fit(case.hardware, case.shape, case.calibration)
        for item in advise_training(case.run, fit, keys.has):
            yield item.text(keys.key) + _server_note(case, item)
        gpus = smallest_gpus(case.run, fit)
        if gpus is None:
            yield "without a change no number of these GPUs is enough: activations do not shrink with shards"
        elif gpus > role.memory.gpus:
            yield f"without a change it fits if sharded over {gpus} of these GPUs"


def _server_note(case: Case, item: Advice) -> str:
    """A note if a change to the trainer, such as an adapter, makes a server that fits too large; "" if not."""
    served = next((role for role in case.memory.roles if role.served is not None), None)
    if served is None or not served.fits:
        return ""
    after, _ = memory_of(apply_changes(case.run, item.assignments), case.hardware, case.shape)
    fits = all(role.fits for role in after.roles if role.served is not None)
    return "" if fits else "; the server does not fit with it"


def _advise_sharing(sharing: Sharing, keys: Keys) -> Iterator[str]:
    """What to set for both roles on one GPU."""
    known = {field: value for field, value in sharing.assignments.items() if keys.has(field)}
    if sharing.fits or sharing.longest_ctx_tokens:
        settings = ", ".join(f"{keys.key(field)} = {value:g}" for field, value in known.items())
        yield f"{settings}: with these both fit on one GPU"
    else:
        yield "no length fits beside this trainer on one GPU: a smaller model, an adapter (LoRA), or a second GPU"
    yield f"start {sharing.starts_first} first: {sharing.why_first}"
