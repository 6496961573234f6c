"""Decides which checkpoints are superseded. Pure: deletes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Kept(Protocol):
    """A value saved at a step, complete or not."""

    @property
    def step(self) -> int: ...

    @property
    def complete(self) -> bool: ...

    @property
    def pinned(self) -> bool: ...


K = TypeVar("K", bound=Kept)


def find_superseded(checkpoints: Iterable[K], keep_last: int, keep_every_steps: int | None) -> list[K]:
    """Complete checkpoints beyond the newest `keep_last`, oldest first.

    Never returns the newest complete one, a pinned one, one whose step is a multiple of `keep_every_steps`, or an
    incomplete one, because it may be in the middle of a save.
    """
    complete = sorted((c for c in checkpoints if c.complete), key=lambda c: c.step)
    beyond = complete[: -max(1, keep_last)]
    return [c for c in beyond if not c.pinned and not (keep_every_steps and c.step % keep_every_steps == 0)]
