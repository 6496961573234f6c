"""Estimates how long an optimizer step takes and names the basis of the estimate. Pure; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.estimate.time.measured_rows import NEARBY, MeasuredRow, Nearby, find_nearby, measured_rows
from prime_train.estimate.time.rl_step_time import Way, broadcast_s
from prime_train.estimate.time.step_flops import ExpertLoop, StepSetup, work_of
from prime_train.estimate.time.step_terms import (
    EXPERTS_ONE_BY_ONE,
    TimeTerm,
    TrainerRates,
    gpu_class,
    rates_of,
    step_terms,
)
from prime_train.estimate.values import Hardware, Interval

_LOOP_FACTOR = 3.0  # by which a loop over experts may be faster or slower
_WIDEST = math.log(8)  # an interval never exceeds a factor of eight, even if the nearest row is far away


class Throughput(NamedTuple):
    """The speed of a training.

    `step_s` is one optimizer step without the transfer of weights to inference, which is `broadcast_s` (None if there
    is none); `tokens_per_s` includes both and is of all GPUs. `mfu` counts forward and backward without recompute.
    `terms` add up to `step_s.typical`.
    """

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
    rates: TrainerRates | None = None,
    rows: Sequence[MeasuredRow] | None = None,
) -> Throughput:
    """The time of a step, tokens per second and MFU of a setup, with intervals and their basis.

    `way` is how weights reach inference, for RL only. `rates` and `rows` replace the shipped ones.
    Raises UserError if the GPU's peak is not known or a size is not positive.
    """
    _check_sizes(setup, hardware)
    rates = rates or rates_of(setup.trainer)
    around = find_nearby(setup, hardware, measured_rows() if rows is None else rows)
    cards = _possible_cards(setup, hardware, measured_rows() if rows is None else rows)
    terms = _mean_terms([step_terms(setup, card, rates) for card in cards])
    typical = sum(term.seconds for term in terms)
    fastest, slowest = _bounds(setup, cards, rates)
    low, high = spread_factors(rates, gpu_class(hardware), around)
    step = Interval(fastest * low, typical, slowest * high)
    handover = broadcast_s(setup.shape, hardware, way, setup.lora_rank) if setup.objective == "rl" else None
    return Throughput(
        step_s=step,
        tokens_per_s=tokens_per_s(setup.tokens_per_step, step, handover),
        mfu=work_of(setup, hardware.gpus_per_node).model_flops / typical / hardware.peak_flops_bf16,
        basis=_basis(setup, hardware, rates, around, terms) + _open_questions(setup, cards),
        broadcast_s=handover,
        terms=terms,
    )


def tokens_per_s(tokens: float, step_s: Interval, handover_s: Interval | None) -> Interval:
    """Tokens per second of steps that are each followed by a transfer of weights."""
    wait_s = handover_s.typical if handover_s is not None else 0.0
    return Interval(*(seconds + wait_s for seconds in step_s)).divide(tokens)


def _possible_cards(setup: StepSetup, hardware: Hardware, rows: Sequence[MeasuredRow]) -> tuple[Hardware, ...]:
    """The GPU at full power, and below it if this trainer's rows on this GPU are all from such cards.

    No config names the one that is rented.
    """
    same = [row.hardware for row in rows if row.setup.trainer == setup.trainer and row.hardware.id == hardware.id]
    if hardware.power_limited or not same or not all(card.power_limited for card in same):
        return (hardware,)
    return (hardware, hardware._replace(power_limited=True))


def _mean_terms(found: Sequence[Sequence[TimeTerm]]) -> tuple[TimeTerm, ...]:
    """The terms with their mean seconds over the possible cards."""
    return tuple(
        same[0]._replace(seconds=sum(term.seconds for term in same) / len(same)) for same in zip(*found, strict=True)
    )


def _bounds(setup: StepSetup, cards: Sequence[Hardware], rates: TrainerRates) -> tuple[float, float]:
    """Typical seconds for the fastest and the slowest way in which the step may run: by power, and by loop.

    A loop depends on how the host launches it, so its own time may be a third, or three times as long.
    """

    def seconds(card: Hardware, loop: ExpertLoop, factor: float) -> float:
        terms = step_terms(setup._replace(expert_loop=loop), card, rates)
        return sum(term.seconds * (factor if term.name == EXPERTS_ONE_BY_ONE else 1.0) for term in terms)

    fastest = min(seconds(card, setup.expert_loop, 1 / _LOOP_FACTOR) for card in cards)
    slowest = max(seconds(card, "yes" if setup.expert_loop else "", _LOOP_FACTOR) for card in cards)
    return fastest, slowest


def spread_factors(rates: TrainerRates, gpus: str, around: Nearby | None) -> tuple[float, float]:
    """Factors of the estimate between which nine of ten rows lie on a class of GPUs.

    They are wider if the nearest row is farther away, and off the rows at least as wide as without any row.
    """
    spread, off = rates.spread_on(gpus), rates.off
    grown = 1.0 if around is None else 1 + spread.growth * around.distance
    low, high = math.log(spread.low) * grown, math.log(spread.high) * grown
    if around is None or around.is_off:
        low, high = min(low, math.log(off.low)), max(high, math.log(off.high))
    return math.exp(max(-_WIDEST, low)), math.exp(min(_WIDEST, high))


def _open_questions(setup: StepSetup, cards: Sequence[Hardware]) -> str:
    """What a config does not show, and the interval holds."""
    found = ""
    if len(cards) > 1:
        found += "; the rows are of cards below the power of the data sheet: between that and full power"
    if setup.expert_loop == "perhaps":
        found += "; the slow end counts experts one by one, as transformers computes them before version 5"
    return found


def _basis(
    setup: StepSetup, hardware: Hardware, rates: TrainerRates, around: Nearby | None, terms: Sequence[TimeTerm]
) -> str:
    """The basis as text: "41 measured rows of prime-rl on hopper GPUs; nearest: ...", or a roofline and why."""
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
        roofline = "a roofline of published speeds"
        parts = f"its rates on other GPUs for {share:.0%} of the step, {roofline} for the rest" if share else roofline
        return f"no measurement of {setup.trainer} on {name} GPUs: {parts}; nearest: {where}"
    fitted = f"rates fitted to {rates.fitted_rows} rows" if rates.fitted_rows else "roofline of published kernel speeds"
    if around.distance > NEARBY:
        beside = f"{around.same_class} rows of {setup.trainer} on {name} GPUs"
        return f"{fitted}; no measurement nearby, nearest: {where}; {beside}"
    few = f", all {around.too_few}: the interval is that of trainers without rows" if around.too_few else ""
    return f"{around.same_class} measured rows of {setup.trainer} on {name} GPUs{few}; nearest: {where}; {fitted}"


def _check_sizes(setup: StepSetup, hardware: Hardware) -> None:
    for name in ("ctx_tokens", "micro_batch_tokens", "micro_batches", "gpus"):
        value = getattr(setup, name)
        if value < 1:
            why = "a step needs tokens and GPUs"
            raise UserError(f"{name} = {value}", "the batch and the mesh", why, f"{name} = 1 or more")
    if not hardware.peak_flops_bf16 > 0 or not hardware.bandwidth_bytes_per_s > 0:
        what = f"peak {hardware.peak_flops_bf16:g} FLOP/s, bandwidth {hardware.bandwidth_bytes_per_s:g} B/s"
        fix = "--gpus 8xh100-80gb, or another GPU of registry/gpus.toml"
        raise UserError(what, f"the GPU {hardware.id}", "the time of a step is computed from both", fix)
