"""Divides the rows of a step over the replicas that are there, and into micro-batches. Pure: no clock, no torch."""

from __future__ import annotations


def divide(rows: int, replicas: int, rank: int) -> range:
    """The rows of one replica, by their place in the step. Parts follow each other and differ by at most one row.

    A function of these numbers alone, so a step that is repeated with fewer replicas uses each row once, too.
    """
    return range(rows * rank // replicas, rows * (rank + 1) // replicas)


def cut(part: range, micro_batch: int) -> list[range]:
    """The micro-batches of a part, in order. The last one has what is left, so their number may differ by replica."""
    return [part[start : start + micro_batch] for start in range(0, len(part), micro_batch)]


def cut_for_rank(part: range, ranks: int, rank: int, micro_batch: int) -> tuple[list[range], int]:
    """The micro-batches of one rank of a replica, and how many blank ones it takes after them.

    All ranks of a replica take equally many, because they exchange weights or gradients in each.
    """
    own = cut(_divide_part(part, ranks, rank), micro_batch)
    most = max(len(cut(_divide_part(part, ranks, other), micro_batch)) for other in range(ranks))
    return own, most - len(own)


def _divide_part(part: range, ranks: int, rank: int) -> range:
    places = divide(len(part), ranks, rank)
    return part[places.start : places.stop]
