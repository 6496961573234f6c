"""Keeps the ranks of one replica in step: what one of them cannot do, none of them does. Joins no other replica."""

from __future__ import annotations

import torch
import torch.distributed as dist

from prime_train.trainer.parallel import World


def agree(world: World, succeeded: bool, step: int) -> bool:
    """Whether every rank of the replica succeeded. Every rank calls it. RuntimeError where their steps differ.

    Then a part of the ranks has the state of another replica and a part has not. Only a new start helps.
    """
    if world.waiting is None:
        return succeeded
    found = torch.tensor([int(succeeded), step, -step])
    dist.all_reduce(found, dist.ReduceOp.MIN, group=world.waiting)  # ends with an error where a rank is gone
    together, first, last = found.tolist()
    if first != -last:
        raise RuntimeError(f"the ranks of this replica are at steps {first} to {-last}")
    return bool(together)
