"""Combines memory, time and cost of a run on one type of GPU into an Estimate. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prime_train.core.units import GIB
from prime_train.estimate.calibrate import Calibration
from prime_train.estimate.cost.run_cost import Cost, InterruptionRates, PricedWork, cost_of, shipped_rates
from prime_train.estimate.memory.assumed import assumed_by
from prime_train.estimate.memory.roles import RunMemory, memory_of
from prime_train.estimate.memory.training import LEAST_UNLIKE
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.spot.advice import SpotSaves, advise_saves, assume_saves
from prime_train.estimate.time.run_time import Time, time_of
from prime_train.estimate.values import Hardware, Interval
from prime_train.estimate.verdict import Chance, MemoryVerdict
from prime_train.prices.price import Price
from prime_train.registry import gpus
from prime_train.spec import RunSpec
from prime_train.spec.answers import train_gpus

_OF_CLIPS = (
    "a clip counts as {tokens} tokens; memory is that of the encoder with its objective, as counted on a CPU; no step "
    "of one was measured on a GPU, and what evaluations and reading clips take is left out"
)
_OF_CLASSES = "audio.classes is unset: the weights for the labels, which are counted at the start, are left out"
# Source: github.com/pytorch/ao, issue 685 (MLPs of four widths on an L20, August 2024).
_FP8_MEMORY = {
    True: "memory is that of bf16: with precision.fp8, compiled MLPs were measured to take up to 1.1 times as much",
    False: "memory is that of bf16: with precision.fp8, MLPs were measured to take 1.5 to 1.9 times as much, "
    "or up to 1.1 times with model.compile",
}


class Estimate(NamedTuple):
    """What a run needs and costs on `hardware`. `time` is None if nothing is trained.

    `costs` are on-demand and spot, in that order, each only if there is a price. `assumptions` lists what the config
    does not set and what is uncertain; `advice` lists changes for a run that does not fit.
    """

    shape: ModelShape
    hardware: Hardware
    memory: RunMemory
    time: Time | None
    costs: tuple[Cost, ...]
    assumptions: tuple[str, ...]
    advice: tuple[str, ...] = ()
    spot_saves: SpotSaves | None = None  # None without a spot price, or if nothing is trained

    @property
    def chance(self) -> Chance:
        return self.memory.chance

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def is_refused(self) -> bool:
        """Whether the run does not fit; one that likely fits may be tried."""
        return self.memory.chance.verdict is MemoryVerdict.DOES_NOT_FIT


def estimate(
    run: RunSpec,
    hardware: Hardware,
    shape: ModelShape,
    calibration: Calibration | None = None,
    prices: Sequence[Price] = (),
) -> Estimate:
    """Memory, time and cost of `run`. Raises UserError if the GPU's speed is not known."""
    memory, setup = memory_of(run, hardware, shape, calibration)
    time = time_of(run, setup, hardware, memory, calibration) if setup is not None else None
    assumptions = (
        *(time.assumptions if time is not None else ()),
        *(assumed_by(run.recipe, setup) if run.recipe is not None and setup is not None else ()),
        *_uncertainties(run, memory, hardware, shape),
        *_calibrated(memory, calibration),
    )
    costs = _costs(run, memory, time, hardware, prices)
    return Estimate(
        shape, hardware, memory, time, costs, assumptions, spot_saves=_advise_saves(run, shape, time, costs)
    )


def _calibrated(memory: RunMemory, calibration: Calibration | None) -> Iterator[str]:
    """How a measurement of another config was used."""
    trainer = next((role.memory for role in memory.roles if role.memory.role == "trainer"), None)
    if calibration is not None and trainer is not None and (note := calibration.note(trainer)):
        yield note


def _uncertainties(run: RunSpec, memory: RunMemory, hardware: Hardware, shape: ModelShape) -> Iterator[str]:
    """What the config does not set, and figures of the GPU and of the model that are less certain than the rest."""
    for role in memory.roles:
        if role.memory.unlike:
            yield f"{'; '.join(role.memory.unlike)}: the bound is at least {LEAST_UNLIKE:g} times the estimate"
    if train_gpus(run) is None:
        yield f"{memory.gpus.train} GPUs train, all available ones: the config does not set their number"
    if run.audio is not None:
        yield _OF_CLIPS.format(tokens=run.data.ctx_tokens)
        if run.audio.classes is None and run.audio.label_field:
            yield _OF_CLASSES
    if run.precision.fp8 != "none":
        yield _FP8_MEMORY[run.model.compile]
    if hardware.assumed:
        yield f"{hardware.id}: {hardware.assumed}"
    gpu = next((gpu for gpu in gpus.gpu_peaks() if gpu.id == hardware.id and not hardware.assumed), None)
    if gpu is not None and not gpu.is_looked_up:
        yield f"speed of {gpu.id}: {gpu.source}"
    if gpu is not None and gpu.usable_gib is None:
        usable_gib = hardware.usable_bytes / GIB
        yield f"memory of {gpu.id} that torch can see: {usable_gib:.0f} GiB, estimated from {gpu.memory_gb:g} GB"
    if "read as a Llama" in shape.source or "from memory" in shape.source:
        yield f"{shape.name}: {shape.source}"


def _costs(
    run: RunSpec, memory: RunMemory, time: Time | None, hardware: Hardware, prices: Sequence[Price]
) -> tuple[Cost, ...]:
    """On-demand and spot costs, each if there is a price of that GPU; none for a run that does not fit."""
    if time is None or memory.chance.verdict is MemoryVerdict.DOES_NOT_FIT:
        return ()
    work = PricedWork(hardware.id, memory.gpus.all, time.steps, time.step_s, run.checkpoint.interval_steps)
    found = (cost_of(work, prices, _rates(run), spot=spot) for spot in (False, True))
    return tuple(cost for cost in found if cost is not None)


def _rates(run: RunSpec) -> InterruptionRates:
    """The shipped rates; that of spot machines is the config's, if it has one."""
    per_day, rates = run.prime_train.interruptions_per_day, shipped_rates()
    return rates if per_day is None else rates._replace(spot=Interval(*([per_day / 24] * 3)))


def _advise_saves(run: RunSpec, shape: ModelShape, time: Time | None, costs: tuple[Cost, ...]) -> SpotSaves | None:
    """How often to save on spot machines, with save times assumed from the size of the model."""
    if time is None or not any(cost.spot for cost in costs):
        return None
    rates, saves = _rates(run), assume_saves(run, shape.parameters)
    return advise_saves(run, time.step_s.typical, rates.spot.typical, rates.restart_s.typical, saves, measured=False)
