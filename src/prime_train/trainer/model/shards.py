"""The rows of a weight that this process holds, of a model that is whole or sharded by FSDP2. Sends nothing.

FSDP2 shards each weight by its rows: process r of n holds the r-th of n equal parts, the last ones fewer rows or none.
Source: torch.chunk, which torch/distributed/tensor/placement_types.py, Shard, uses (torch 2.13).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard


def local_part(weight: Tensor) -> Tensor:
    """The part of a weight in this process, which shares its memory."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def rows_of(weight: Tensor) -> slice:
    """The rows of the whole weight that this process holds."""
    if not isinstance(weight, DTensor):
        return slice(0, len(weight))
    for dimension, placement in enumerate(weight.placements):
        if isinstance(placement, Shard):
            rows = -(-len(weight) // weight.device_mesh.size(dimension))
            start = min(len(weight), weight.device_mesh.get_local_rank(dimension) * rows)
            return slice(start, start + len(weight.to_local()))
    return slice(0, len(weight))


def whole_to_fill(weight: Tensor) -> Tensor:
    """The weight itself, or for a shard an uninitialised whole on the CPU, of which `copy_rows` takes a part."""
    return torch.empty(weight.shape, dtype=weight.dtype) if isinstance(weight, DTensor) else weight


def copy_rows(weight: Tensor, whole: Tensor) -> None:
    """Copy the rows of `whole` that this process holds. Rows that `whole` lacks are not changed."""
    if weight is not whole:
        part = whole[rows_of(weight)]
        local_part(weight)[: len(part)].copy_(part)
