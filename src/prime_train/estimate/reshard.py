"""Judges whether FSDP2 should drop the gathered weights of a block after its forward. Pure.

The numbers are those of `estimate` before a run, or those that the trainer has measured in its first steps.
"""

from __future__ import annotations

from typing import NamedTuple

from prime_train.core.units import format_bytes, format_seconds

_FORWARD_SHARE = 1 / 3  # of the compute of a forward and backward. Source: PaLM, arXiv 2204.02311, appendix B
_LEAST_GAIN = 0.01  # of a micro-batch's time; less is noise
_ROOM = 1.1  # free bytes per byte to keep, because the allocator's segments do not fit exactly
_NOISE = 0.98  # two measurements of one step differ by as much
_HALVINGS = 40
_TIGHT = 0.02  # of all bytes: with less free, a longer batch of documents ends the run


class Shards(NamedTuple):
    """What one GPU needs for one micro-batch of a sharded model."""

    reshards: bool  # parallel.reshard
    gather_s: float  # to gather the weights of all blocks once
    compute_s: float  # forward and backward without any wait
    kept_bytes: float  # the gathered weights of all blocks
    free_bytes: float  # of the GPU at the peak of a step
    all_bytes: float  # of the GPU


def exposed_s(shards: Shards, *, reshards: bool) -> float:
    """Seconds of a micro-batch in which the GPU waits for weights. The gather of a block is hidden behind the compute
    of the block before it, in the forward and, if the weights were dropped, in the backward."""
    forward = max(0.0, shards.gather_s - _FORWARD_SHARE * shards.compute_s)
    return forward + (max(0.0, shards.gather_s - (1 - _FORWARD_SHARE) * shards.compute_s) if reshards else 0.0)


def shards_from_measured(
    *, reshards: bool, gather_s: float, micro_batch_s: float, kept_bytes: float, free_bytes: float, all_bytes: float
) -> Shards:
    """The shards of which a micro-batch with its waits takes `micro_batch_s`.

    Where waits fill it, several amounts of compute give that time; the smallest one counts.
    """
    shards = Shards(reshards, gather_s, 0.0, kept_bytes, free_bytes, all_bytes)
    low, high = 0.0, micro_batch_s
    for _ in range(_HALVINGS):
        tried = shards._replace(compute_s=(low + high) / 2)
        if tried.compute_s + exposed_s(tried, reshards=reshards) < _NOISE * micro_batch_s:
            low = tried.compute_s
        else:
            high = tried.compute_s
    return shards._replace(compute_s=high)


def advise_reshard(shards: Shards) -> str:
    """The change of parallel.reshard that helps, with its reason; "" if there is none."""
    if shards.reshards:
        gain_s = exposed_s(shards, reshards=True) - exposed_s(shards, reshards=False)
        micro_batch_s = shards.compute_s + exposed_s(shards, reshards=True)
        if gain_s <= _LEAST_GAIN * micro_batch_s or shards.free_bytes < _ROOM * shards.kept_bytes:
            return ""
        saved = f"up to {format_seconds(gain_s)} of {format_seconds(micro_batch_s)} per micro-batch"
        return (
            f"parallel.reshard = false saves {saved}: "
            f"a gather of {format_seconds(shards.gather_s)} is longer than the backward hides, and "
            f"{format_bytes(shards.kept_bytes)} of weights fit into {format_bytes(shards.free_bytes)} of free memory"
        )
    if shards.free_bytes >= _TIGHT * shards.all_bytes:
        return ""
    lost_s = exposed_s(shards, reshards=True) - exposed_s(shards, reshards=False)
    return (
        f"parallel.reshard = true frees {format_bytes(shards.kept_bytes)}, of which {format_bytes(shards.free_bytes)} "
        f"are free now, and costs {format_seconds(lost_s)} per micro-batch"
    )
