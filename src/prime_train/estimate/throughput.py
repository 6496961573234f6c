"""Estimates how long an optimizer step takes and says what that rests on. Pure; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from prime_train.errors import UserError
from prime_train.estimate.broadcast import Way, broadcast_s
from prime_train.estimate.throughput_basis import NEARBY, MeasuredRow, Nearby, measured_rows, nearby
from prime_train.estimate.throughput_rates import Rates, Spread, gpu_class, rates_of
from prime_train.estimate.throughput_terms import TimeTerm, step_terms
from prime_train.estimate.values import Hardware, Interval
from prime_train.estimate.work import StepSetup, work_of

_WIDEST = math.log(8)  # an interval says no more than "within a factor of eight", however far the nearest row


class Throughput(NamedTuple):
    """The speed of a training. `step_s` is one optimizer step without the hand-over of weights, which is
    `broadcast_s` (None where there is none); `tokens_per_s` counts both and all GPUs. `mfu` is the share of the
    peak that forward and backward take of a step, without recompute. `terms` add up to `step_s.typical`."""

    step_s: Interval
    tokens_per_s: Interval
    mfu: float
    basis: str
    broadcast_s: Interval | None
    terms: tuple[TimeTerm, ...]


def throughput_of(
    setup: StepSetup,
    hardware: Hardware,
    way: Way = "filesystem",
    rates: Rates | None = None,
    rows: Sequence[MeasuredRow] | None = None,
) -> Throughput:
    """The time of a step, tokens per second and MFU of a setup, each with its interval and what they rest on.

    `way` is how weights reach inference and counts for RL alone. `rates` and `rows` replace what ships.
    Raises UserError where the GPU's peak is not known or a size is not a positive number.
    """
    _refuse_the_impossible(setup, hardware)
    rates = rates or rates_of(setup.trainer)
    around = nearby(setup, hardware, measured_rows() if rows is None else rows)
    terms = tuple(step_terms(setup, hardware, rates))
    typical = sum(term.seconds for term in terms)
    low, high = spread_factors(rates.spread, around)
    step = Interval(typical * low, typical, typical * high)
    handover = None
    if setup.objective == "rl":
        handover = broadcast_s(setup.shape, hardware, way, setup.lora_rank)
    wait = handover or Interval(0.0, 0.0, 0.0)
    tokens = setup.tokens_per_step
    return Throughput(
        step_s=step,
        tokens_per_s=Interval(
            tokens / (step.high + wait.typical),
            tokens / (step.typical + wait.typical),
            tokens / (step.low + wait.typical),
        ),
        mfu=work_of(setup, hardware.gpus_per_node).model_flops / typical / hardware.peak_flops_bf16,
        basis=_basis(setup, hardware, rates, around, terms),
        broadcast_s=handover,
        terms=terms,
    )


def spread_factors(spread: Spread, around: Nearby | None) -> tuple[float, float]:
    """Multiples of the estimate between which nine of ten rows lie; wider, the farther the nearest row is."""
    grown = 1.0 if around is None else 1 + spread.growth * around.distance
    return (
        math.exp(max(-_WIDEST, math.log(spread.low) * grown)),
        math.exp(min(_WIDEST, math.log(spread.high) * grown)),
    )


def _basis(setup: StepSetup, hardware: Hardware, rates: Rates, around: Nearby | None, terms: Sequence[TimeTerm]) -> str:
    """ "41 measured rows of prime-rl on hopper GPUs; nearest: ...", or that it is a roofline and why."""
    if around is None:
        return f"roofline of published kernel speeds; nothing measured of {setup.trainer}"
    near = around.nearest
    where = (
        f"{near.setup.shape.name} on {near.hardware.gpus}x{near.hardware.id}, {near.setup.ctx_tokens} tokens"
        f"{', LoRA' if near.setup.lora_rank else ''}, {near.tokens_per_s:.0f} tokens/s"
    )
    name = gpu_class(hardware)
    if not around.same_class:
        share = sum(term.seconds for term in terms if term.measured) / sum(term.seconds for term in terms)
        return (
            f"nothing measured of {setup.trainer} on {name} GPUs: its rates elsewhere for {share:.0%} of the step, "
            f"a roofline of published speeds for the rest; nearest: {where}"
        )
    if around.distance > NEARBY:
        return (
            f"rates fitted to {rates.fitted_rows} rows of {setup.trainer}, {around.same_class} of them on {name} GPUs; "
            f"nothing measured nearby, nearest: {where}"
        )
    return (
        f"{around.same_class} measured rows of {setup.trainer} on {name} GPUs, nearest: {where}; "
        f"rates fitted to {rates.fitted_rows} rows"
    )


def _refuse_the_impossible(setup: StepSetup, hardware: Hardware) -> None:
    sizes = {
        "ctx_tokens": setup.ctx_tokens,
        "micro_batch_tokens": setup.micro_batch_tokens,
        "micro_batches": setup.micro_batches,
        "gpus": setup.gpus,
    }
    for name, value in sizes.items():
        if value < 1:
            raise UserError(
                what=f"{name} = {value}",
                where="the batch and the mesh",
                why="a step without tokens or GPUs takes no time that could be told",
                fix=f"{name} = 1 or more",
            )
    if not hardware.peak_flops_bf16 > 0 or not hardware.bandwidth_bytes_per_s > 0:
        raise UserError(
            what=f"peak {hardware.peak_flops_bf16:g} FLOP/s, bandwidth {hardware.bandwidth_bytes_per_s:g} B/s",
            where=f"the GPU {hardware.id}",
            why="the time of a step is reckoned from both",
            fix="--gpus 8xh100-80gb, or another GPU of registry/gpus.toml",
        )
