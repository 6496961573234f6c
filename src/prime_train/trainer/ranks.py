"""The place of this process among the training processes of all machines. Connects nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.core.machines import Machines, read_machines


class Ranks(NamedTuple):
    """`rank` of `size` on all machines together, and `local_rank` of `local_size` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    machines: Machines | None = None  # None = one machine


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """Reads what torchrun sets, which counts the processes of its own machine, and the machines of the run.

    Each machine has a torchrun of its own, so none of them listens where another machine reaches it.
    """
    local_rank, local_size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    machines = read_machines(environment)
    if machines is None:
        return Ranks(local_rank, local_size, local_rank, local_size)
    return Ranks(machines.rank * local_size + local_rank, machines.count * local_size, local_rank, local_size, machines)
