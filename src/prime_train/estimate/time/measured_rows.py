"""Reads the published measurements of training speed, and finds those around a setup. Estimates no time."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from prime_train.core.installation import shipped
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.estimate.time.step_flops import StepSetup
from prime_train.estimate.time.step_terms import gpu_class, kernel_in_use
from prime_train.estimate.time.token_flops import active_expert_parameters, linear_parameters
from prime_train.estimate.values import Hardware

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
