"""Estimates how long an optimizer step takes and names the basis of the estimate. Pure; measures nothing."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.installation import shipped
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.estimate.time.rl_step_time import Way, broadcast_s
from prime_train.estimate.time.step_flops import ExpertLoop, StepSetup, work_of
from prime_train.estimate.time.step_terms import (
    EXPERTS_ONE_BY_ONE,
    TimeTerm,
    TrainerRates,
    gpu_class,
    kernel_in_use,
    rates_of,
    step_terms,
)
from prime_train.estimate.time.token_flops import active_expert_parameters, linear_parameters
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


NEARBY = 3.0  # largest distance of a nearby row: a factor of 8 in one size, or of 2 in each of three
_FEW_ROWS = 20  # so many rows of one publication are enough
_CLASS_APART, _KERNEL_APART, _ADAPTER_APART, _MOE_APART, _PRECISION_APART = 4.0, 1.5, 1.5, 2.0, 2.0
_HEAD_APART, _RECOMPUTE_APART, _MODEL_APART = 0.5, 0.5, 0.25
_POWER_APART, _WIDTHS_APART = 1.0, 1.0
# Columns of measured_rows/throughput.csv that are fields of StepSetup.
_ROW_NUMBERS = ("ctx_tokens", "micro_batch_tokens", "micro_batches", "lora_rank")
_ROW_FLAGS = ("reshard", "activation_offload", "optimizer_offload", "parameter_offload", "fused", "async_tp")
_ROW_WIDTHS = ("tp", "cp", "pp", "stages_per_gpu")
_ROW_WORDS = ("trainer", "generation", "objective", "recompute", "head", "kernel", "precision")


class MeasuredRow(NamedTuple):
    """One published measurement. `tokens_per_s` is of all GPUs."""

    setup: StepSetup
    hardware: Hardware
    tokens_per_s: float
    source: str

    @property
    def publication(self) -> str:
        """What was published together: a table, or the results of one commit."""
        file, _, commit = self.source.rpartition("@")
        return commit if file.endswith(".json") else self.source

    @property
    def counts_handover(self) -> bool:
        """Whether the measured time includes writing the weights for inference, as prime-rl's does for full models."""
        return self.setup.objective == "rl" and not self.setup.lora_rank


class Nearby(NamedTuple):
    """Measurements around a setup: the number of rows of the same trainer and GPU class, and the nearest row of all.

    `same_precision`: one of those rows has the setup's precision. `too_few`: why they say too little, "" if they do
    not.
    """

    same_class: int
    nearest: MeasuredRow
    distance: float
    same_precision: bool = True
    too_few: str = ""

    @property
    def is_far(self) -> bool:
        """Whether no row is of the same class of GPUs, near, and of the same precision."""
        return not self.same_class or self.distance > NEARBY or not self.same_precision

    @property
    def is_off(self) -> bool:
        """Whether the rows say too little about a setup: they are far or too few."""
        return self.is_far or bool(self.too_few)


@cache
def measured_rows() -> tuple[MeasuredRow, ...]:
    """The rows that ship in registry/measured_rows/throughput.csv."""
    with open(shipped("measured_rows", "throughput.csv"), encoding="utf-8", newline="") as file:
        return tuple(row_from_columns(row) for row in csv.DictReader(file))


def row_from_columns(row: Mapping[str, str]) -> MeasuredRow:
    """The row of one line of that file. Raises ValueError if the registry lacks the model or a number is invalid."""
    shape = shape_from_registry(row["model"])
    if shape is None:
        raise ValueError(f"{row['model']} has no shape in the registry")
    fields: dict[str, Any] = {name: row[name] for name in _ROW_WORDS}
    fields |= {name: int(row[name]) for name in _ROW_NUMBERS}
    fields |= {name: row[name] == "yes" for name in _ROW_FLAGS}
    fields |= {name: int(row[name]) for name in _ROW_WIDTHS}
    shards = int(row["gpus"]) // (fields["tp"] * fields["cp"] * fields["pp"])
    hardware = hardware_from_name(f"{row['gpus']}x{row['gpu']}")
    return MeasuredRow(
        StepSetup(shape=shape, dp_shard=shards, **fields),
        hardware._replace(power_limited=row["power_limited"] == "yes"),
        float(row["tokens_per_s"]),
        row["source"],
    )


def find_nearby(setup: StepSetup, hardware: Hardware, rows: Iterable[MeasuredRow]) -> Nearby | None:
    """The rows of the same trainer around a setup; None if that trainer was never measured."""
    same = [row for row in rows if row.setup.trainer == setup.trainer]
    if not same:
        return None
    distance, nearest = min(((_distance(setup, hardware, row), row) for row in same), key=lambda pair: pair[0])
    here = gpu_class(hardware)
    beside = [row for row in same if gpu_class(row.hardware) == here]
    precisions = {row.setup.precision for row in beside}
    return Nearby(len(beside), nearest, distance, setup.precision in precisions, _why_too_few(beside))


def _why_too_few(rows: Sequence[MeasuredRow]) -> str:
    """Why rows of one class do not show how far the next row is off.

    prime-rl's rows on RTX A6000, all of Qwen3-0.6B, differ by 39 % between hosts and months of one setup. Its rows on
    B200 of one of two publications have three of ten rows of the other outside their interval.
    """
    if len({row.setup.shape.name for row in rows}) == 1:
        return "of one model"
    if len(rows) < _FEW_ROWS and len({row.publication for row in rows}) == 1:
        return "of one publication"
    return ""


def _distance(setup: StepSetup, hardware: Hardware, row: MeasuredRow) -> float:
    """Doublings between two setups, summed over their sizes, plus a fixed step for each other difference."""
    other = row.setup
    sizes = (
        (_active(setup), _active(other), 1.0),
        (setup.ctx_tokens, other.ctx_tokens, 0.5),
        (setup.micro_batch_tokens, other.micro_batch_tokens, 0.5),
        (setup.gpus, other.gpus, 0.25),
    )
    total = sum(weight * abs(math.log2(a / b)) for a, b, weight in sizes)
    here, there = gpu_class(hardware), gpu_class(row.hardware)
    apart: Sequence[tuple[bool, float]] = (
        (here != there, _CLASS_APART),
        (here == there and kernel_in_use(setup, hardware) != kernel_in_use(other, row.hardware), _KERNEL_APART),
        ((setup.lora_rank > 0) != (other.lora_rank > 0), _ADAPTER_APART),
        (setup.shape.is_moe != other.shape.is_moe, _MOE_APART),
        (setup.precision != other.precision, _PRECISION_APART),
        (hardware.power_limited != row.hardware.power_limited, _POWER_APART),
        (_widths(setup) != _widths(other), _WIDTHS_APART),
        (setup.head != other.head, _HEAD_APART),
        (setup.recompute != other.recompute, _RECOMPUTE_APART),
        (setup.shape.name != other.shape.name, _MODEL_APART),
    )
    return total + sum(step for differs, step in apart if differs)


def _widths(setup: StepSetup) -> tuple[bool, bool, bool]:
    """Which kinds of parallelism besides sharding are used: tensor, context, pipeline."""
    return setup.tp > 1, setup.cp > 1, setup.pp > 1


def _active(setup: StepSetup) -> float:
    return max(1.0, linear_parameters(setup.shape) + active_expert_parameters(setup.shape))
