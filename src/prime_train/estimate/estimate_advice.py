"""Advises what to change in a run that does not fit, with the keys of the user's file. Pure; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prime_train.estimate.advice import Advice, advise_serving, advise_training, smallest_gpus, trainer_fit
from prime_train.estimate.calibrate import Calibration, calibrate_memory
from prime_train.estimate.changes import apply_changes
from prime_train.estimate.estimate_memory import Memory, memory_of
from prime_train.estimate.setup import setup_of
from prime_train.estimate.shape import ModelShape
from prime_train.estimate.sharing import Sharing
from prime_train.estimate.training import training_memory
from prime_train.estimate.values import Hardware, RoleMemory
from prime_train.spec import RunSpec


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
        fit = trainer_fit(lambda run: _trainer(case, run), case.hardware.usable_bytes)
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


def _trainer(case: Case, run: RunSpec) -> RoleMemory:
    setup = setup_of(run, case.hardware, case.shape)
    return calibrate_memory(training_memory(setup, case.hardware), case.calibration)


def _advise_sharing(sharing: Sharing, keys: Keys) -> Iterator[str]:
    """What to set for both roles on one GPU."""
    known = {field: value for field, value in sharing.assignments.items() if keys.has(field)}
    if sharing.fits or sharing.longest_ctx_tokens:
        settings = ", ".join(f"{keys.key(field)} = {value:g}" for field, value in known.items())
        yield f"{settings}: with these both fit on one GPU"
    else:
        yield "no length fits beside this trainer on one GPU: a smaller model, an adapter (LoRA), or a second GPU"
    yield f"start {sharing.starts_first} first: {sharing.why_first}"
