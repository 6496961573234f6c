"""Estimates how long an optimizer step takes and names the basis of the estimate. Pure; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from prime_train.errors import UserError
from prime_train.estimate.broadcast import Way, broadcast_s
from prime_train.estimate.throughput_basis import NEARBY, MeasuredRow, Nearby, find_nearby, measured_rows
from prime_train.estimate.throughput_rates import Rates, Spread, gpu_class, rates_of
from prime_train.estimate.throughput_terms import TimeTerm, step_terms
from prime_train.estimate.values import Hardware, Interval
from prime_train.estimate.work import StepSetup, work_of

_WIDEST = math.log(8)  # an interval never exceeds a factor of eight, even if the nearest row is far away


class Throughput(NamedTuple):
    """The speed of a training. `step_s` is one optimizer step without the transfer of weights to inference, which is
    `broadcast_s` (None if there is none); `tokens_per_s` includes both and is of all GPUs. `mfu` counts forward and
    backward without recompute. `terms` add up to `step_s.typical`."""

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
    """The time of a step, tokens per second and MFU of a setup, with intervals and their basis.

    `way` is how weights reach inference, for RL only. `rates` and `rows` replace the shipped ones.
    Raises UserError if the GPU's peak is not known or a size is not positive.
    """
    _check_sizes(setup, hardware)
    rates = rates or rates_of(setup.trainer)
    around = find_nearby(setup, hardware, measured_rows() if rows is None else rows)
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
    """Factors of the estimate between which nine of ten rows lie, wider if the nearest row is farther away."""
    grown = 1.0 if around is None else 1 + spread.growth * around.distance
    return (
        math.exp(max(-_WIDEST, math.log(spread.low) * grown)),
        math.exp(min(_WIDEST, math.log(spread.high) * grown)),
    )


def _basis(setup: StepSetup, hardware: Hardware, rates: Rates, around: Nearby | None, terms: Sequence[TimeTerm]) -> str:
    """The basis as text: "41 measured rows of prime-rl on hopper GPUs, nearest: ...", or a roofline and why."""
    if around is None:
        return f"roofline of published kernel speeds; no measurement of {setup.trainer}"
    near = around.nearest
    where = (
        f"{near.setup.shape.name} on {near.hardware.gpus}x{near.hardware.id}, {near.setup.ctx_tokens} tokens"
        f"{', LoRA' if near.setup.lora_rank else ''}, {near.tokens_per_s:.0f} tokens/s"
    )
    name = gpu_class(hardware)
    if not around.same_class:
        share = sum(term.seconds for term in terms if term.measured) / sum(term.seconds for term in terms)
        return (
            f"no measurement of {setup.trainer} on {name} GPUs: its rates on other GPUs for {share:.0%} of the step, "
            f"a roofline of published speeds for the rest; nearest: {where}"
        )
    if around.distance > NEARBY:
        return (
            f"rates fitted to {rates.fitted_rows} rows of {setup.trainer}, {around.same_class} of them on {name} GPUs; "
            f"no measurement nearby, nearest: {where}"
        )
    return (
        f"{around.same_class} measured rows of {setup.trainer} on {name} GPUs, nearest: {where}; "
        f"rates fitted to {rates.fitted_rows} rows"
    )


def _check_sizes(setup: StepSetup, hardware: Hardware) -> None:
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
                why="a step needs tokens and GPUs",
                fix=f"{name} = 1 or more",
            )
    if not hardware.peak_flops_bf16 > 0 or not hardware.bandwidth_bytes_per_s > 0:
        raise UserError(
            what=f"peak {hardware.peak_flops_bf16:g} FLOP/s, bandwidth {hardware.bandwidth_bytes_per_s:g} B/s",
            where=f"the GPU {hardware.id}",
            why="the time of a step is computed from both",
            fix="--gpus 8xh100-80gb, or another GPU of registry/gpus.toml",
        )
