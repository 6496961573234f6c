"""Run as a program: deletes the planned folders that may still be deleted, one JSON object to a line.

python removal_program.py ORDER_AS_JSON

It is a program of its own because a deletion takes minutes, and never ends on a disk that does not answer. If it is
killed at any moment, each folder is either whole or marked, and the next deletion completes the marked ones.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import Deletion, Keep, StoredItem, newest_usable, reason_to_keep
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.stock import Stock
from prime_train.supervise.watches.sample_lines import load, write

_NICE = 19


@dataclass(frozen=True, slots=True)
class Order:
    """The planned deletions, oldest first, and what must stay in any case."""

    places: StepPlaces
    keep: Keep
    deletions: tuple[Deletion, ...]


def carry_out(order: Order) -> Iterator[tuple[Deletion, str]]:
    """Each deletion, and why it was not done; empty if it was done."""
    for root in order.places.folders:
        removal.put_back(root)
    work = RemovalWork(order, Stock(order.places))
    for deletion in order.deletions:
        try:
            yield deletion, delete(deletion, work)
        except OSError as error:  # this folder alone: the others may still be deleted
            yield deletion, f"{error.strerror or error}: {error.filename or deletion.item.paths[0]}"


@dataclass(frozen=True, slots=True)
class RemovalWork:
    """An order in progress, and what was found meanwhile."""

    order: Order
    stock: Stock
    verified: dict[Path, str] = field(default_factory=dict)  # newest checkpoints that were read, and their problem

    def items(self) -> list[StoredItem]:
        return self.stock.take(time.time())


def delete(deletion: Deletion, work: RemovalWork) -> str:
    """Delete the item if that is still allowed. Returns the reason against it, else "". Raises OSError."""
    if deletion.item.kind == "leftover":
        for path in deletion.item.paths:
            removal.finish(path)
        return ""
    items = work.items()
    if problem := reason_to_keep(deletion, items, work.order.keep, time.time()):
        return problem
    if deletion.last_resort and (problem := _verify_newest(items, work)):
        return problem
    return removal.remove_unless(deletion.item.paths, _create_check(deletion, work))


def _create_check(deletion: Deletion, work: RemovalWork) -> Callable[[Sequence[Path]], str]:
    """The last check, after the folders were renamed so that no process can start to use them."""

    def find_reason(asides: Sequence[Path]) -> str:
        if not asides:
            return "it is gone"
        if opened := in_use.opened_by(asides):
            return f"{opened} and reads or writes it"
        user = next((found for aside in asides if (found := in_use.marked_by(aside))), "")
        is_pinned = any((aside / layout.PIN).exists() for aside in asides)
        item = replace(deletion.item, in_use=user, pinned=is_pinned)
        return reason_to_keep(deletion, [*work.items(), item], work.order.keep, time.time())

    return find_reason


def _verify_newest(items: Sequence[StoredItem], work: RemovalWork) -> str:
    """The reason not to rely on the newest checkpoint alone. If it has hashes, all of it is read first."""
    newest = newest_usable(items, work.order.keep)
    if newest is None:
        return "no newer checkpoint is complete"
    if not work.order.places.layout.manifest:
        return ""
    path = newest.paths[0]
    if path not in work.verified:
        work.verified[path] = layout.inspect(path, hashes=True).problem
    problem = work.verified[path]
    return f"the run would be left with step {newest.step}, and its {problem}" if problem else ""


def main() -> None:
    os.nice(_NICE)
    for deletion, problem in carry_out(load(Order, sys.argv[1])):
        write({"path": deletion.item.paths[0], "failed": problem})


if __name__ == "__main__":
    main()
