"""Exchanges tensors between replicas over a group of torchft: makes it, limits and sums. Decides nothing on a loss."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp
from torchft.process_group import ProcessGroupGloo, ProcessGroupNCCL

_BUCKET_BYTES = 25 * 2**20  # of gradients that are summed at a time, as in DDP


def new_group(device: torch.device, limit: timedelta) -> Any:
    kind = ProcessGroupNCCL if device.type == "cuda" else ProcessGroupGloo
    return kind(timeout=limit)


def set_limit(manager: Any, group: Any, device: torch.device, limit_s: float) -> None:
    """Let exchanges of a group from now on end after so many seconds."""
    limit = timedelta(seconds=limit_s)
    manager._timeout = limit  # torchft 0.2.0 takes it at the start alone
    group.set_timeout(limit)  # of groups that it makes later; of each sum over NCCL
    if isinstance(group, ProcessGroupGloo) and group._pg is not None:
        group._pg._get_backend(device)._set_default_timeout(limit)


def sum_in_buckets(manager: Any, tensors: Sequence[Tensor]) -> bool:
    """Sum each tensor in place. Returns False after a loss: then the values mean nothing."""
    for bucket in list_buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])  # one exchange for many small tensors
        manager.allreduce(flat, reduce_op=ReduceOp.SUM).wait()
        if manager.errored() is not None:
            return False
        for tensor, part in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(part.view_as(tensor))
    return True


def list_buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors in buckets of one type each, in their order."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        own = tensor.numel() * tensor.element_size()
        if not buckets or buckets[-1][0].dtype != tensor.dtype or size + own > _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += own
    return buckets
