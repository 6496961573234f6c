"""Run as a program: deletes what was planned, each folder only if it may still go; a JSON object to a line.

python disk_removal_program.py ORDER_AS_JSON

It is a program of its own because a deletion takes minutes, and for ever on a disk that does not answer. Ended at any
moment it leaves folders that are whole, or such as the next one goes on to delete.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import Deletion, Item, Keep, newest_usable, reason_to_keep
from prime_train.checkpoints.inventory import Places, Stock, places_from
from prime_train.supervise.watches.disk.sample import item_as_json, item_from

_NICE = 19


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be deleted, oldest first, and what must stay whatever was planned."""

    places: Places
    keep: Keep
    deletions: tuple[Deletion, ...]

    def as_json(self) -> dict[str, Any]:
        keep = {name: getattr(self.keep, name) for name in Keep.__dataclass_fields__}
        return {
            "places": self.places.as_json(),
            "keep": keep | {"unreadable": sorted(self.keep.unreadable)},
            "deletions": [[item_as_json(one.item), one.reason, one.last_resort] for one in self.deletions],
        }


def order_from(told: dict[str, Any]) -> Order:
    """The order whose `as_json` this is."""
    keep = Keep(**{**told["keep"], "unreadable": frozenset(told["keep"]["unreadable"])})
    deletions = (Deletion(item_from(item), reason, last) for item, reason, last in told["deletions"])
    return Order(places_from(told["places"]), keep, tuple(deletions))


def carry_out(order: Order) -> Iterator[tuple[Deletion, str]]:
    """Each deletion, and why it was not done; empty where it was."""
    for root in order.places.folders:
        removal.put_back(root)
    work = Work(order, Stock(order.places))
    for deletion in order.deletions:
        try:
            yield deletion, delete(deletion, work)
        except OSError as error:  # of one folder: the others may still go
            yield deletion, f"{error.strerror or error}: {error.filename or deletion.item.paths[0]}"


@dataclass(frozen=True, slots=True)
class Work:
    """An order that is being carried out, and what was found out meanwhile."""

    order: Order
    stock: Stock
    verified: dict[Path, str] = field(default_factory=dict)  # newest checkpoints that were read, and what was wrong

    def items(self) -> list[Item]:
        return self.stock.take(time.time())


def delete(deletion: Deletion, work: Work) -> str:
    """Delete it if it may still go; why not, else empty. Raises OSError."""
    if deletion.item.kind == "leftover":
        for path in deletion.item.paths:
            removal.finish(path)
        return ""
    items = work.items()
    if problem := reason_to_keep(deletion, items, work.order.keep, time.time()):
        return problem
    if deletion.last_resort and (problem := _doubt(items, work)):
        return problem
    return removal.remove_unless(deletion.item.paths, _hindered(deletion, work))


def _hindered(deletion: Deletion, work: Work) -> Callable[[Sequence[Path]], str]:
    """What is asked once its folders have other names, under which nobody can begin to use them."""

    def hindered(asides: Sequence[Path]) -> str:
        if not asides:
            return "it is gone"
        if opened := in_use.opened_by(asides):
            return f"{opened} and reads or writes it"
        user = next((found for aside in asides if (found := in_use.marked_by(aside))), "")
        is_pinned = any((aside / layout.PIN).exists() for aside in asides)
        item = replace(deletion.item, in_use=user, pinned=is_pinned)
        return reason_to_keep(deletion, [*work.items(), item], work.order.keep, time.time())

    return hindered


def _doubt(items: Sequence[Item], work: Work) -> str:
    """What speaks against the newest checkpoint as the only one: it is read whole before that, where it has hashes."""
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
    for deletion, problem in carry_out(order_from(json.loads(sys.argv[1]))):
        sys.stdout.write(json.dumps({"path": str(deletion.item.paths[0]), "failed": problem}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
