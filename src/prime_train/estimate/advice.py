"""Tries changes to a run that does not fit and reports what each saves; finds the smallest number of GPUs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.units import format_bytes
from prime_train.estimate.calibrate import Calibration, calibrate_memory
from prime_train.estimate.candidate_changes import (
    TABLES,
    Assignments,
    CandidateChange,
    Kind,
    Value,
    apply_changes,
    has_adapter,
    serving_changes,
    training_changes,
    value_of,
)
from prime_train.estimate.choose_changes import Fit, FitOf, SpeedOf, choose, choose_number
from prime_train.estimate.memory.roles import RunMemory, Sharing, memory_of
from prime_train.estimate.memory.setup_from_recipe import casts_under_fsdp
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_memory import inference_memory, smallest_fraction
from prime_train.estimate.serving.server_setup import serve_setup_of
from prime_train.estimate.time.run_time import step_setup_of
from prime_train.estimate.time.throughput import throughput_of
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, server_gpus, trains
from prime_train.toml.document import to_toml

_LEAST_SAVING = 0.01  # share of the needed bytes; a change that saves less is not listed
_MOST_GPUS = 1024
_SLOWER = 0.995  # a speed below this share of the one before is shown
Write = Callable[[str, Value], str]


def _unknown_speed(_run: RunSpec) -> float:
    return 0.0


class Advice(NamedTuple):
    """A tried change.

    `saving_bytes`: by how much it lowers the missing bytes; `fits`: whether that is enough; `speed`: tokens per second
    over those before the change, None if not known.
    """

    assignments: Assignments
    costs: str
    saving_bytes: float
    fits: bool
    speed: float | None = None

    def text(self, key: Callable[[str], str] = str, write: Write | None = None) -> str:
        """One line. `key` maps a RunSpec field to the key in the user's file, `write` an assignment to its words."""
        set_to = ", ".join(_assignment(field, key(field), value, write) for field, value in self.assignments)
        verdict = "then it fits" if self.fits else "not enough alone"
        if self.fits and self.speed is not None and self.speed < _SLOWER:
            verdict += f", at {self.speed:.0%} of the speed"
        return f"{set_to} (saves {format_bytes(self.saving_bytes)} per GPU; {verdict}; costs: {self.costs})"


def trainer_fit(hardware: Hardware, shape: ModelShape, calibration: Calibration | None = None) -> FitOf:
    """The fit of the trainer: the upper bound plus memory outside the allocator, against the memory torch can see."""

    def fit(run: RunSpec) -> Fit:
        memory = training_memory(setup_of(run, hardware, shape), hardware)
        return Fit(calibrate_memory(memory, calibration).needed_bytes, hardware.usable_bytes)

    return fit


def trainer_speed(hardware: Hardware, shape: ModelShape) -> SpeedOf:
    """Tokens per second of the trainer; 0 if the speed of the GPU is not known."""
    return lambda run: setup_speed(run, hardware)(setup_of(run, hardware, shape))


def setup_speed(run: RunSpec, hardware: Hardware) -> Callable[[TrainSetup], float]:
    """The same for a setup of the run, in any layout."""

    def speed(setup: TrainSetup) -> float:
        try:
            work, _ = step_setup_of(run, setup, hardware)
            return throughput_of(work, hardware._replace(gpus=work.gpus)).tokens_per_s.typical
        except UserError:
            return 0.0

    return speed


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


def advise_training(
    run: RunSpec, fit_of: FitOf, has: Callable[[str], bool] = bool, speed_of: SpeedOf = _unknown_speed
) -> tuple[Advice, ...]:
    """Advice for the training of a run, the smallest change that is enough first; () if it fits.

    `has(field)`: the user's file format has a key for the field.
    """
    return _advise(run, fit_of, training_changes(run), has, speed_of)


def advise_serving(
    run: RunSpec, hardware: Hardware, shape: ModelShape, has: Callable[[str], bool] = bool
) -> tuple[Advice, ...]:
    """Advice for the server of a run; () if it starts."""
    setup = serve_setup_of(run, hardware, shape)
    changes = serving_changes(run, setup.sequences, setup.ctx_tokens)
    return _advise(run, server_fit(hardware, shape), changes, has, _unknown_speed)


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
        if sharding != run.recipe.sharding and casts_under_fsdp(recipe):
            recipe = recipe._replace(weight_dtype="fp32")  # the type that was set is that of another layout
        return dataclasses.replace(run, recipe=recipe)
    if run.prime_rl is None:
        layout = (("parallel.processes", gpus), ("parallel.dp_replicate", 1), ("parallel.dp_shard", gpus))
        return apply_changes(run, layout)
    return apply_changes(run, (*_deployment_settings(run, gpus), ("trainer.dp_replicate", 1)))


def _deployment_settings(run: RunSpec, gpus: int) -> Iterator[tuple[str, Value]]:
    """The prime-rl settings that give `gpus` GPUs to the trainer: their number, their ids (2026-01), or nodes."""
    yield "deployment.train_gpus", gpus
    deployment = prime_rl_of(run).deployment
    if deployment is None:
        return
    if deployment.train_gpu_ids is not None:
        taken = deployment.infer_gpu_ids or ()
        free = (number for number in range(gpus + len(taken)) if number not in taken)
        yield "deployment.train_gpu_ids", tuple(islice(free, gpus))
    if deployment.kind == "multi_node" and deployment.gpus_per_node:
        yield "deployment.train_nodes", -(-gpus // deployment.gpus_per_node)


def _advise(
    run: RunSpec, fit_of: FitOf, possible: Iterable[CandidateChange], has: Callable[[str], bool], speed_of: SpeedOf
) -> tuple[Advice, ...]:
    """The smallest change that is enough; then each change alone, those that are enough first."""
    before = fit_of(run)
    if before.fits:
        return ()
    changes = [change for change in possible if all(has(field) for field, _ in change.assignments)]
    speed_before = speed_of(run)

    def try_changes(assignments: Assignments, costs: str) -> Advice:
        changed = apply_changes(run, assignments)
        after = fit_of(changed)
        speed = speed_of(changed) / speed_before if speed_before else None
        shown = tuple((field, value) for field, value in assignments if value_of(run, field) != value)
        return Advice(shown, costs, before.missing_bytes - after.missing_bytes, after.fits, speed)

    tried = [try_changes(choose_number(run, fit_of, change), change.costs) for change in changes]
    alone = [advice for advice in tried if advice.saving_bytes > _LEAST_SAVING * before.needed_bytes]
    alone.sort(key=lambda advice: not advice.fits)
    chosen = choose(run, fit_of, changes, speed_of)
    if chosen is None:
        return tuple(alone)
    first = try_changes(chosen.assignments, "; ".join(change.costs for change in chosen.changes))
    return (first, *(advice for advice in alone if set(advice.assignments) != set(first.assignments)))


def _assignment(field: str, key: str, value: Value, write: Write | None = None) -> str:
    if write is not None:
        return write(field, value)
    return f"[{key}]" if field in TABLES and key != field else f"{key} = {to_toml(value)}"


class Keys(NamedTuple):
    """Maps RunSpec fields to the user's file: `key` is the name of a field there, `has` whether it has one.

    `write` is an assignment in the words of a format that is not TOML.
    """

    key: Callable[[str], str]
    has: Callable[[str], bool]
    write: Write | None = None


class Case(NamedTuple):
    """A run and the hardware it does not fit on."""

    run: RunSpec
    hardware: Hardware
    shape: ModelShape
    memory: RunMemory
    calibration: Calibration | None = None


def advise(case: Case, keys: Keys) -> tuple[str, ...]:
    """Lines of advice, the smallest change that is enough first; () if the run fits."""
    memory = case.memory
    if memory.fits:
        return ()
    more_gpus = f"--gpus {memory.gpus.all}x{case.hardware.id}: the config needs {memory.gpus.all} GPUs"
    lines = () if memory.enough_gpus else (*_share_one(case, keys), f"{more_gpus}; or set fewer in the config")
    if all(role.fits for role in memory.roles):
        return lines
    return (
        *lines,
        *(_advise_roles(case, keys) if memory.sharing is None else _advise_sharing(memory.sharing, keys, case.run)),
    )


def _share_one(case: Case, keys: Keys) -> Iterator[str]:
    """How trainer and server share the only GPU; nothing if there are more, or no length fits."""
    run = case.run
    if case.hardware.gpus != 1 or not trains(run) or not server_gpus(run) or run.prime_rl is None:
        return
    zero: tuple[int, ...] = (0,)
    together: Assignments = (("deployment.train_gpu_ids", zero), ("deployment.infer_gpu_ids", zero))
    shared = apply_changes(run, (*together, ("deployment.train_gpus", 1), ("deployment.infer_gpus", 1)))
    sharing = memory_of(shared, case.hardware, case.shape)[0].sharing
    if sharing is None or not (sharing.fits or sharing.longest_ctx_tokens):
        return
    wanted: Assignments = (*together, *sharing.assignments.items())
    settings = ", ".join(
        _assignment(field, keys.key(field), value, keys.write) for field, value in wanted if keys.has(field)
    )
    yield f"trainer and server on the one GPU: {settings}; the preset rl-single-gpu is such a run"


def _advise_roles(case: Case, keys: Keys) -> Iterator[str]:
    """Advice for each role that does not fit on its own GPUs."""
    for role in case.memory.roles:
        if role.fits:
            continue
        if role.served is not None:
            found = advise_serving(case.run, case.hardware, case.shape, keys.has)
            yield from (item.text(keys.key, keys.write) for item in found)
            continue
        fit = trainer_fit(case.hardware, case.shape, case.calibration)
        items = advise_training(case.run, fit, keys.has, trainer_speed(case.hardware, case.shape))
        if not any(item.fits for item in items):
            yield from _advise_gpus(case, fit, keys)
        for item in items:
            yield item.text(keys.key, keys.write) + _server_note(case, item)
        gpus = smallest_gpus(case.run, fit)
        if gpus is None:
            yield "without a change no number of these GPUs is enough: activations do not shrink with shards"
        elif gpus > role.memory.gpus:
            yield f"without a change it fits if sharded over {gpus} of these GPUs"


def _advise_gpus(case: Case, fit: FitOf, keys: Keys) -> Iterator[str]:
    """All changes that keep the training what it is, and the GPUs that are enough with them; nothing if none are."""
    changed, used = case.run, dict[str, Value]()
    for change in training_changes(case.run):
        if change.kind is not Kind.SAME or not all(keys.has(field) for field, _ in change.assignments):
            continue
        assignments = choose_number(changed, fit, change)
        following = apply_changes(changed, assignments)
        if fit(following).missing_bytes < fit(changed).missing_bytes:
            changed = following
            used |= assignments
    gpus = smallest_gpus(changed, fit)
    other = {field: value for field, value in used.items() if value != value_of(case.run, field)}
    settings = [_assignment(field, keys.key(field), value, keys.write) for field, value in other.items()]
    if gpus is not None and settings:
        yield f"{', '.join(settings)}: then it fits if sharded over {gpus} of these GPUs"


def _server_note(case: Case, item: Advice) -> str:
    """A note if a change to the trainer, such as an adapter, makes a server that fits too large; "" if not."""
    served = next((role for role in case.memory.roles if role.served is not None), None)
    if served is None or not served.fits:
        return ""
    after, _ = memory_of(apply_changes(case.run, item.assignments), case.hardware, case.shape)
    fits = all(role.fits for role in after.roles if role.served is not None)
    return "" if fits else "; the server does not fit with it"


def _advise_sharing(sharing: Sharing, keys: Keys, run: RunSpec) -> Iterator[str]:
    """What to set for both roles on one GPU; `run` decides whether an adapter is left to advise."""
    known = {field: value for field, value in sharing.assignments.items() if keys.has(field)}
    if sharing.fits or sharing.longest_ctx_tokens:
        settings = ", ".join(f"{keys.key(field)} = {value:g}" for field, value in known.items())
        yield f"{settings}: with these both fit on one GPU"
    else:
        adapter = "" if has_adapter(run) else " an adapter (LoRA),"
        yield f"no length fits beside this trainer on one GPU: a smaller model,{adapter} or a second GPU"
    yield f"start {sharing.starts_first} first: {sharing.why_first}"
