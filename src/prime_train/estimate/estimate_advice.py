"""Says what to change in a run that does not fit, in the user's own keys, each change tried. Pure; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prime_train.estimate import advice
from prime_train.estimate.calibrate import Calibration, calibrated_memory
from prime_train.estimate.changes import changed
from prime_train.estimate.estimate_memory import Memory, memory_of
from prime_train.estimate.setup import setup_of
from prime_train.estimate.shape import ModelShape
from prime_train.estimate.sharing import Sharing
from prime_train.estimate.training import training_memory
from prime_train.estimate.values import Hardware, RoleMemory
from prime_train.spec import RunSpec


class Keys(NamedTuple):
    """How the user's file calls the fields of a RunSpec: `key` of a field, and whether it has one at all."""

    key: Callable[[str], str]
    has: Callable[[str], bool]


class Case(NamedTuple):
    """The run that does not fit, and where."""

    run: RunSpec
    hardware: Hardware
    shape: ModelShape
    memory: Memory
    calibration: Calibration | None = None


def advise(case: Case, keys: Keys) -> tuple[str, ...]:
    """Lines of advice, the cheapest change first; () where the run fits."""
    memory = case.memory
    if memory.fits:
        return ()
    wanted = f"--gpus {memory.gpus.all}x{case.hardware.id}: it asks for {memory.gpus.all} GPUs"
    more = () if memory.enough_gpus else (f"{wanted}; or ask for fewer in the config",)
    if all(role.fits for role in memory.roles):
        return more
    return (*more, *(_alone(case, keys) if memory.sharing is None else _shared(memory.sharing, keys)))


def _alone(case: Case, keys: Keys) -> Iterator[str]:
    """Of each role that does not fit on its own GPUs."""
    for role in case.memory.roles:
        if role.fits:
            continue
        if role.served is not None:
            found = advice.advise_serving(case.run, case.hardware, case.shape, keys.has)
            yield from (item.text(keys.key) for item in found)
            continue
        fit = advice.trainer_fit(lambda run: _trainer(case, run), case.hardware.usable_bytes)
        for item in advice.advise_training(case.run, fit, keys.has):
            yield item.text(keys.key) + _beside(case, item)
        gpus = advice.smallest_gpus(case.run, fit)
        if gpus is None:
            yield "no number of GPUs of this kind is enough as it is: activations do not shrink with shards"
        elif gpus > role.memory.gpus:
            yield f"as it is, it fits sharded over {gpus} GPUs of this kind"


def _beside(case: Case, item: advice.Advice) -> str:
    """What a change to the trainer, such as an adapter that the server takes up too, does to a server that fits."""
    served = next((role for role in case.memory.roles if role.served is not None), None)
    if served is None or not served.fits:
        return ""
    after, _ = memory_of(changed(case.run, item.assignments), case.hardware, case.shape)
    fits = all(role.fits for role in after.roles if role.served is not None)
    return "" if fits else "; the server does not fit with it"


def _trainer(case: Case, run: RunSpec) -> RoleMemory:
    setup = setup_of(run, case.hardware, case.shape)
    return calibrated_memory(training_memory(setup, case.hardware), case.calibration)


def _shared(sharing: Sharing, keys: Keys) -> Iterator[str]:
    """What to set for both roles on one GPU."""
    known = {field: value for field, value in sharing.assignments.items() if keys.has(field)}
    if sharing.fits or sharing.longest_ctx_tokens:
        settings = ", ".join(f"{keys.key(field)} = {value:g}" for field, value in known.items())
        yield f"{settings}: with these both fit on one GPU"
    else:
        yield "no length fits beside this trainer on one GPU: a smaller model, an adapter (LoRA), or a second GPU"
    yield f"start {sharing.starts_first} first: {sharing.why_first}"
