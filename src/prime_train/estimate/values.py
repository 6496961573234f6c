"""Defines the values of an estimate: terms, intervals, hardware, memory of one role. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Interval(NamedTuple):
    """Three figures of one quantity: nine of ten measured runs lie between `low` and `high`."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.typical * factor, self.high * factor)

    def plus(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.typical + other.typical, self.high + other.high)

    def divide(self, amount: float) -> Interval:
        """`amount` per unit of this quantity, such as tokens per second from seconds."""
        return Interval(amount / self.high, amount / self.typical, amount / self.low)


ZERO = Interval(0.0, 0.0, 0.0)


class Term(NamedTuple):
    """One part of a sum, with its formula as text and the source of the formula.

    `bytes` is a float because fitted factors give fractions, and a sum of rounded terms is not the rounded sum.
    """

    name: str
    bytes: float
    formula: str
    source: str


class RoleMemory(NamedTuple):
    """Bytes that one role ("trainer", "inference") needs on each of its GPUs.

    `terms` add up to `reserved.typical`, the estimate of torch.cuda.max_memory_reserved on rank 0. `outside` are terms
    outside torch's allocator (CUDA context, NCCL), which count for the verdict and not for the interval.

    `allocated` is max_memory_allocated where the measured runs have that figure. Then it decides what fits, because the
    allocator frees the rest before it fails. `unlike` names what no measured run had; with such a name the upper bound
    is at least 1.5 times the typical value. `safe_share` of a GPU is what the upper bound may fill.
    """

    role: str
    gpus: int
    terms: tuple[Term, ...]
    reserved: Interval
    outside: tuple[Term, ...]
    phase: str = ""  # the phase of the peak: "head", "first block", "last block", "embedding", "update"
    allocated: Interval | None = None
    unlike: tuple[str, ...] = ()
    safe_share: float = 1.0

    @property
    def outside_bytes(self) -> float:
        return sum(term.bytes for term in self.outside)

    @property
    def need(self) -> Interval:
        """The bytes that must fit: those of the allocator, and those outside it."""
        outside = self.outside_bytes
        return (self.allocated or self.reserved).plus(Interval(outside, outside, outside))

    @property
    def shown(self) -> Interval:
        """The bytes that nvidia-smi shows: the reserved ones, and those outside the allocator."""
        outside = self.outside_bytes
        return self.reserved.plus(Interval(outside, outside, outside))

    @property
    def needed_bytes(self) -> float:
        """Bytes of a GPU that make the run safe: the upper bound, and what has to stay free beside it."""
        return self.need.high / self.safe_share


class Hardware(NamedTuple):
    """A number of GPUs of one type. `usable_bytes`: memory of one GPU that torch can see; FLOP/s are dense."""

    id: str
    name: str
    gpus: int
    usable_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops_bf16: float
    compute_capability: tuple[int, int] | None
    gpus_per_node: int = 8
    power_limited: bool = False  # runs below the power of its data sheet, so matrix products are slower
    assumed: str = ""  # what of these numbers is not from a data sheet

    @property
    def is_card(self) -> bool:
        """Whether the GPU is a PCIe card, which no switch connects to other GPUs."""
        return "pcie" in self.id or "nvl" in self.id

    @property
    def is_geforce(self) -> bool:
        """Whether it is a GeForce RTX of the 30 series or later: sums in fp32 run at half the rate of its chip."""
        return re.fullmatch(r"rtx-[3-9]0\d0", self.id) is not None


def find_largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low` to `high` that fits; `low` if none does. Numbers below one that fits must fit."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
