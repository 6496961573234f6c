"""Chooses a whole config: tries trainers and concessions in their order until one fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from prime_train.choose.bundled import draft_bundled, first_length, list_layouts
from prime_train.choose.draft import Draft
from prime_train.choose.finish import choose_end
from prime_train.choose.prime_rl import draft_prime_rl, list_prime_rl_layouts
from prime_train.choose.sizes import HEADROOM, TriedLayouts, choose_sizes, explain, fits_at_all
from prime_train.choose.wishes import BUNDLED, Concession, Wishes
from prime_train.config import detect
from prime_train.config.parsed_config import Reading
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import GIB, format_count
from prime_train.estimate.candidate_changes import Assignments, apply_changes
from prime_train.estimate.estimate import Estimate, estimate
from prime_train.estimate.hardware import hardware_from_entry
from prime_train.prices.price import Price
from prime_train.registry.gpus import gpu_peaks
from prime_train.spec import RunSpec

_LEAST_CTX_TOKENS = 256
_GPUS_OF_A_MACHINE = (2, 4, 8)
_LARGE_GPUS = ("h100-80gb", "h200", "b200")


class ChosenConfig(NamedTuple):
    """A config that fits. `draft` has the settings with their reasons, `text` the file."""

    trainer: str
    level: Concession
    draft: Draft
    text: str
    reading: Reading
    estimate: Estimate


def choose(wishes: Wishes, prices: tuple[Price, ...] = (), path: str = "run.toml") -> ChosenConfig:
    """The config for these wishes. Raises UserError if nothing fits, or the budget is too small."""
    found = _find_fitting(wishes, HEADROOM) or _find_fitting(wishes, 0.0)
    if found is None:
        raise _nothing_fits(wishes)
    trainer, level, draft, sizes = found
    hardware, shape = wishes.place.hardware, wishes.shape
    run = _run_of(draft)
    assert sizes.best is not None
    sized = estimate(apply_changes(run, (*sizes.best.layout, *sizes.best.sizes)), hardware, shape)
    assert sized.time is not None
    draft = draft.choose(explain(sizes, run, hardware, shape))
    draft = draft.choose(choose_end(wishes, _run_of(draft), sized.time, sized.memory.gpus.all, prices))
    text = draft.text(*_title(wishes, trainer))
    reading = detect.read(text, path)
    assert reading.run is not None
    return ChosenConfig(trainer, level, draft, text, reading, estimate(reading.run, hardware, shape, None, prices))


def _find_fitting(wishes: Wishes, headroom: float) -> tuple[str, Concession, Draft, TriedLayouts] | None:
    """The first trainer and concession with which the run fits."""
    for trainer in wishes.trainers:
        for level in list_levels(wishes):
            draft, sizes = try_level(wishes, trainer, level, headroom)
            if sizes.best is not None:
                return trainer, level, draft, sizes
    return None


def try_level(
    wishes: Wishes, trainer: str, level: Concession, headroom: float = HEADROOM
) -> tuple[Draft, TriedLayouts]:
    """The draft of a trainer with one concession, and the sizes that were tried for it."""
    draft, layouts = _draft(wishes, trainer, level)
    return draft, choose_sizes(_run_of(draft), layouts, wishes.place.hardware, wishes.shape, headroom)


def _draft(wishes: Wishes, trainer: str, level: Concession) -> tuple[Draft, Iterator[Assignments]]:
    """The draft of a trainer, and the layouts to try for it."""
    if trainer == BUNDLED:
        return draft_bundled(wishes, level), list_layouts(wishes)
    return draft_prime_rl(wishes, level, trainer), list_prime_rl_layouts(wishes, trainer)


def _fits_smallest(wishes: Wishes) -> bool:
    """Whether the run fits with the last concession."""
    *_, level = list_levels(wishes)
    drafts = (_draft(wishes, trainer, level) for trainer in wishes.trainers)
    place, shape = wishes.place, wishes.shape
    return any(fits_at_all(_run_of(draft), layouts, place.hardware, shape) for draft, layouts in drafts)


def list_levels(wishes: Wishes) -> Iterator[Concession]:
    """The concessions, the smallest first: all weights, then an adapter, then an adapter and shorter sequences."""
    first = first_length(wishes)
    adapters = [wishes.adapter] if wishes.adapter is not None else [False, True]
    if wishes.task == "pretrain":  # an adapter beside random weights learns nothing
        adapters = [False]
    yield from (Concession(adapter, first) for adapter in adapters)
    least = wishes.workload.least_ctx_tokens if wishes.task == "rl" and wishes.workload else _LEAST_CTX_TOKENS
    ctx_tokens = first // 2
    while wishes.ctx_tokens is None and ctx_tokens >= least:
        yield Concession(adapters[-1], ctx_tokens)
        ctx_tokens //= 2


def _run_of(draft: Draft) -> RunSpec:
    """The run of a draft, which the reader of configs makes, so that nothing is taken for granted here."""
    reading = detect.read(draft.text(), "run.toml")
    assert reading.run is not None, reading.faults
    assert not reading.faults, reading.faults
    return reading.run


def _title(wishes: Wishes, trainer: str) -> Iterator[str]:
    hardware, machines = wishes.place.hardware, wishes.place.machines
    words = {"pretrain": "Pretraining", "sft": "Fine-tuning", "rl": "Reinforcement learning"}[wishes.task]
    gpus = f"{hardware.gpus}x{hardware.id}"
    by = "the bundled trainer" if trainer == BUNDLED else f"prime-rl {trainer}"
    yield f"{words} of {wishes.model} with {by}, sized for {gpus} by `prime-train init`."
    yield f"GPUs: {gpus}" + (f", on {machines} machines" if machines > 1 else "")


def _nothing_fits(wishes: Wishes) -> UserError:
    """What does not fit, by how much, and what would."""
    hardware, shape = wishes.place.hardware, wishes.shape
    levels = list(list_levels(wishes))
    tried = [try_level(wishes, trainer, levels[-1])[1] for trainer in wishes.trainers]
    closest = [sizes.closest.high_bytes for sizes in tried if sizes.tried]
    gpus = f"{hardware.gpus}x{hardware.id}"
    last = levels[-1]
    how = f"{'an adapter' if last.adapter else 'all weights'} and sequences of {last.ctx_tokens} tokens"
    need = f"up to {min(closest) / GIB:.1f} GiB are needed" if closest else "no layout uses these GPUs"
    return UserError(
        what=f"{wishes.model}, {format_count(shape.parameters)} parameters, does not fit on {gpus}",
        where=f"--gpus {gpus}",
        why=f"even with {how}, {need} of the {hardware.usable_bytes / GIB:.1f} GiB of a GPU",
        fix="; or ".join(_suggest(wishes)),
        exit_code=ExitCode.FINDINGS,
    )


def _suggest(wishes: Wishes) -> Iterator[str]:
    """What would fit, each of it tried: the adapter that was refused, more of these GPUs, larger ones."""
    if wishes.adapter is False and wishes.task != "pretrain" and _fits_smallest(replace(wishes, adapter=None)):
        yield "--lora"
    known, gpus = {gpu.id: gpu for gpu in gpu_peaks()}, wishes.place.hardware.gpus
    own = known.get(wishes.place.hardware.id)
    more = [(own, count) for count in _GPUS_OF_A_MACHINE if own is not None and count > gpus]
    larger = [(known[gpu], gpus) for gpu in _LARGE_GPUS if gpu != wishes.place.hardware.id]
    for options in (more, larger):
        for gpu, count in options:
            place = wishes.place._replace(hardware=hardware_from_entry(gpu, count))
            if _fits_smallest(replace(wishes, place=place)):
                yield f"--gpus {count}x{gpu.id}"
                break
    yield "a smaller model"
