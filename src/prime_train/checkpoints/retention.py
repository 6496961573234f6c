"""Decides which checkpoints may go. Pure: it names steps, it deletes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Kept(Protocol):
    """Whatever is saved at steps, whole or not."""

    @property
    def step(self) -> int: ...

    @property
    def complete(self) -> bool: ...

    @property
    def pinned(self) -> bool: ...


K = TypeVar("K", bound=Kept)


def superseded(checkpoints: Iterable[K], keep_last: int, keep_every_steps: int | None) -> list[K]:
    """Complete checkpoints beyond the newest `keep_last`, oldest first.

    Never the newest complete one, never a pinned one, never one whose step is a multiple of
    `keep_every_steps`, never an incomplete one (it may be one that is being written).
    """
    complete = sorted((c for c in checkpoints if c.complete), key=lambda c: c.step)
    beyond = complete[: -max(1, keep_last)]
    return [c for c in beyond if not c.pinned and not (keep_every_steps and c.step % keep_every_steps == 0)]
