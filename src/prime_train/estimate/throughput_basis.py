"""Reads the measured rows of training speed and finds those near a setup. Fits nothing and estimates nothing."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.shape import shape_from_registry
from prime_train.estimate.throughput_rates import gpu_class
from prime_train.estimate.throughput_terms import kernel_in_use
from prime_train.estimate.values import Hardware
from prime_train.estimate.work import StepSetup
from prime_train.estimate.work_shape import active_expert_parameters, linear_parameters
from prime_train.shipped import shipped

NEARBY = 3.0  # largest distance of a nearby row: a factor of 8 in one size, or of 2 in each of three
_CLASS_APART, _KERNEL_APART, _ADAPTER_APART, _MOE_APART, _PRECISION_APART = 4.0, 1.5, 1.5, 2.0, 2.0
_HEAD_APART, _RECOMPUTE_APART, _MODEL_APART = 0.5, 0.5, 0.25


class MeasuredRow(NamedTuple):
    """One published measurement. `tokens_per_s` is of all GPUs."""

    setup: StepSetup
    hardware: Hardware
    tokens_per_s: float
    source: str

    @property
    def counts_handover(self) -> bool:
        """Whether the measured time includes writing the weights for inference, as prime-rl's does for full models."""
        return self.setup.objective == "rl" and not self.setup.lora_rank


class Nearby(NamedTuple):
    """Measurements around a setup: the number of rows of the same trainer and GPU class, and the nearest row of all."""

    same_class: int
    nearest: MeasuredRow
    distance: float


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
    return MeasuredRow(
        StepSetup(
            shape=shape,
            ctx_tokens=int(row["ctx_tokens"]),
            micro_batch_tokens=int(row["micro_batch_tokens"]),
            micro_batches=int(row["micro_batches"]),
            dp_shard=int(row["gpus"]),
            trainer=row["trainer"],
            generation=row["generation"],
            objective=row["objective"],  # type: ignore[arg-type]
            recompute=row["recompute"],  # type: ignore[arg-type]
            reshard=row["reshard"] == "yes",
            activation_offload=row["activation_offload"] == "yes",
            optimizer_offload=row["optimizer_offload"] == "yes",
            parameter_offload=row["parameter_offload"] == "yes",
            lora_rank=int(row["lora_rank"]),
            head=row["head"],  # type: ignore[arg-type]
            kernel=row["kernel"],  # type: ignore[arg-type]
            fused=row["fused"] == "yes",
            precision=row["precision"],  # type: ignore[arg-type]
        ),
        hardware_from_name(f"{row['gpus']}x{row['gpu']}"),
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
    return Nearby(sum(gpu_class(row.hardware) == here for row in same), nearest, distance)


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
        (setup.head != other.head, _HEAD_APART),
        (setup.recompute != other.recompute, _RECOMPUTE_APART),
        (setup.shape.name != other.shape.name, _MODEL_APART),
    )
    return total + sum(step for differs, step in apart if differs)


def _active(setup: StepSetup) -> float:
    return max(1.0, linear_parameters(setup.shape) + active_expert_parameters(setup.shape))
