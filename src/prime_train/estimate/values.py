"""The values an estimate is made of: terms, intervals, what one role needs on one GPU. No formulas, no I/O."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """Three figures of one quantity: nine of ten measured runs lie between `low` and `high`."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.typical * factor, self.high * factor)


class Term(NamedTuple):
    """One part of a sum, with the formula it came from in words and numbers, and who says so.

    `bytes` is a float: a fitted factor makes no whole bytes, and a sum of rounded terms is not the rounded sum.
    """

    name: str
    bytes: float
    formula: str
    source: str


class RoleMemory(NamedTuple):
    """What one role ("trainer", "inference") takes on each of its GPUs, in bytes.

    `terms` add up to `reserved.typical`: what torch.cuda.max_memory_reserved would print on rank 0. `outside` are
    the terms beyond torch's allocator (CUDA context, NCCL): they count for the verdict and not for the interval.
    """

    role: str
    gpus: int
    terms: tuple[Term, ...]
    reserved: Interval
    outside: tuple[Term, ...]
    phase: str = ""  # the highest moment of a step: "head", "first block", "last block", "embedding", "update"

    @property
    def needed_bytes(self) -> float:
        """What must be there for the run to be safe: the upper bound, and what lies outside the allocator."""
        return self.reserved.high + sum(term.bytes for term in self.outside)


class Hardware(NamedTuple):
    """One type of GPU and how many of them. `usable_bytes` is what torch can see of one; rates per second, dense."""

    id: str
    name: str
    gpus: int
    usable_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops_bf16: float
    compute_capability: tuple[int, int] | None
    gpus_per_node: int = 8
