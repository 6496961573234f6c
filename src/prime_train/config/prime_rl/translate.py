"""Gives the values of a prime-rl file the keys of another generation, and finds what a key has by default. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prime_train.config.parsed_config import OTHER_GENERATION, Fault, Reading
from prime_train.config.prime_rl.read import OWN_TABLE
from prime_train.config.prime_rl.renames import move
from prime_train.config.prime_rl.resolve import Held, ResolvedView, Undecided, fill
from prime_train.config.prime_rl.schema import SchemaGeneration, load
from prime_train.config.prime_rl.validate import walk
from prime_train.config.prime_rl.validators import load_validators
from prime_train.core.findings import Patch
from prime_train.toml.document import KeyPath, count_shared, dotted, key_path, patched, value_at

_MOST_ROUNDS = 64  # each has the patches of keys that are not in each other's tables
_SUCCESSORS = {"eval": "evals"}  # a root that a generation does not have -> the one in its place


def root_in(generation: SchemaGeneration, root: str) -> str | None:
    """The name of a root in a generation; None if nothing there is like it."""
    name = root if root in generation.roots else _SUCCESSORS.get(root, "")
    return name if name in generation.roots else None


def translate(reading: Reading, generation: SchemaGeneration) -> dict[str, Any]:
    """The values of the file, without [prime_train], under the keys of a generation that has its root.

    A key that has no place there, or whose value only the user can convert, stays as it is.
    """
    root = root_in(generation, reading.root)
    assert root is not None
    values = {key: value for key, value in reading.document.values.items() if key != OWN_TABLE}
    for _ in range(_MOST_ROUNDS):
        found = walk(generation, root, values, whole=False)
        patches: list[Patch] = [fault.patch for fault in found.faults if _keeps_meaning(fault)]
        moved = dict.fromkeys(fault.key for fault in found.faults)
        patches += _rename_aliases({to: at for to, at in found.aliased.items() if at not in moved}, values)
        if not patches:
            break
        for patch in _choose_unrelated(patches):
            values = patched(values, patch)
    return values


def _choose_unrelated(patches: Iterable[Patch]) -> Iterator[Patch]:
    """The patches, in order, that change no key of an earlier one, nor one above or below it."""
    touched: list[tuple[str, ...]] = []
    for patch in patches:
        keys = [tuple(key.split(".")) for key in patch]
        if not any(count_shared(key, other) == min(len(key), len(other)) for key in keys for other in touched):
            touched.extend(keys)
            yield patch


def _keeps_meaning(fault: Fault) -> bool:
    """Whether a key of another generation has a replacement for its value. A list becomes another list of the same."""
    given = [value for value in fault.patch.values() if value is not None]
    return fault.code == OTHER_GENERATION and (fault.safe or any(isinstance(value, list) for value in given))


def _rename_aliases(aliased: Mapping[KeyPath, KeyPath], values: Mapping[str, Any]) -> Iterator[Patch]:
    for to, at in aliased.items():
        if value_at(values, to) is None and (value := value_at(values, at)) is not None:
            yield {dotted(at): None, dotted(to): value}


class Defaults:
    """What each key of a file has, set or not. Keys are those of `generation`, which may be another than the file's."""

    def __init__(self, reading: Reading, generation: SchemaGeneration, values: Mapping[str, Any]) -> None:
        self._own, self._generation = load(reading.generation), generation
        self._own_root, self._root = reading.root, root_in(generation, reading.root) or reading.root
        theirs = {key: value for key, value in reading.document.values.items() if key != OWN_TABLE}
        is_own = self._own is generation
        shared = load_validators(self._own.name).shared.get(self._own_root, {})
        self._values = values
        self._view = ResolvedView(self._own, self._own_root, fill(values if is_own else theirs, shared))

    def find(self, key: str) -> Any:
        """The value of a key; None without one, or where it is not known."""
        path = key_path(key, self._values)
        own = self._locate(path)
        if own is None:
            return None
        held = self.hold(own)
        if held is not None:
            return held.value
        # An entry of a list has its name in the key, which is no place in the values.
        item = self._own.find(self._own_root, own)
        return None if item is None or item.default == () else item.default

    def hold(self, path: KeyPath) -> Held | None:
        """The value of a key of the file's own generation, and the key that sets it; None where it is not known."""
        try:
            return self._view.get(path)
        except (Undecided, KeyError, IndexError, TypeError):
            return None

    def _locate(self, path: KeyPath) -> KeyPath | None:
        """The key in the file's own generation."""
        if self._own is self._generation or self._own.find(self._own_root, path) is not None:
            return path
        moved = move(self._own, self._own_root, path)
        return moved.to if moved is not None and moved.to and not moved.how else None
