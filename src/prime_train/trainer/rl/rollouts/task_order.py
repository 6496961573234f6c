"""The endless order of the training tasks of all environments. Pure: the same position gives the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prime_train.environments.environment import Environment
from prime_train.trainer.draws import EPOCH, generator


@dataclass(frozen=True, slots=True)
class NextTask:
    """The task with this number in `environments[environment]`. `place` counts all tasks of the order from 0."""

    environment: int
    number: int
    place: int


class TaskOrder:
    """Takes the environments in turn. A limited environment poses all tasks once, shuffled, before it repeats one."""

    def __init__(self, environments: Sequence[Environment], seed: int, position: dict[str, Any] | None = None) -> None:
        """`position`: of an earlier TaskOrder of the same environments, to continue after its last task."""
        self._sizes = [environment.size for environment in environments]
        self._seed = seed
        self._place = int(position["place"]) if position else 0

    def position(self) -> dict[str, Any]:
        return {"place": self._place}

    def next_task(self) -> NextTask:
        turn, which = divmod(self._place, len(self._sizes))
        size = self._sizes[which]
        number = turn
        if size is not None:
            epoch, within = divmod(turn, size)
            number = _permute(self._seed, which, epoch, size)[within]
        task = NextTask(which, number, self._place)
        self._place += 1
        return task


@lru_cache(maxsize=8)
def _permute(seed: int, source: int, epoch: int, count: int) -> list[int]:
    order: list[int] = generator(seed, EPOCH, source, epoch).permutation(count).tolist()
    return order
