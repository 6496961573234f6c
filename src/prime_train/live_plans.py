"""Finds the values that `prime_train.live.settings` returns: plans of the supervisor, and their steps.

Standard library only, Python 3.9 or later. Nothing here raises because of a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

_LONGEST_BYTES = 65536
_OF_SUPERVISOR = "prime_train."  # how a key begins that the supervisor takes itself


class ScriptPlans:
    """The plans in force in this process, and those that it has read and not put in force.

    `folder`: of the plans. `applied`: the file with the steps at which earlier attempts put them in force. `note`
    gets a line for a file that is no plan.
    """

    def __init__(self, folder: str, applied: str, note: Callable[[str], None]) -> None:
        self.version = 0
        self.values: dict[str, Any] = {}
        self._folder, self._note = folder, note
        self._steps = _read_steps(applied)
        self._read: dict[int, dict[str, Any]] = {}  # version -> its values

    def find_newest(self, done: int) -> int:
        """The newest version that this rank has read, without those that begin later than with step `done` + 1."""
        version = self.version
        while self._has(version + 1) and (self._find_step(version + 1) or 0) <= done + 1:
            version += 1
        return version

    def go_to(self, version: int, done: int) -> Iterator[tuple[int, int]]:
        """Put all versions up to this one in force, which this rank has read.

        Yields each with its first step: that of the earlier attempt which was the first to have it.
        """
        while self.version < version:
            self.version += 1
            self.values = {**self.values, **self._read.pop(self.version)}
            yield self.version, min(done + 1, self._find_step(self.version) or done + 1)

    def _find_step(self, version: int) -> int | None:
        """The first step with the version in an earlier attempt. One that was overtaken began with the one after it."""
        return min((step for one, step in self._steps.items() if one >= version), default=None)

    def _has(self, version: int) -> bool:
        """Whether the plan is read. A file that cannot be read now is looked for again by the next call."""
        if version in self._read:
            return True
        path = f"{self._folder}/{version:06d}"
        if not os.path.exists(f"{path}.json"):  # noqa: PTH110 - faster, once a step
            return False
        try:
            self._read[version] = {} if _is_there(f"{path}.dropped") else self._read_values(f"{path}.json", version)
        except OSError:
            return False
        return True

    def _read_values(self, path: str, version: int) -> dict[str, Any]:
        """The values of a plan; none for a file that is no plan, which is so on every rank. Raises OSError."""
        with open(path, encoding="utf-8") as file:
            try:
                found = {**json.loads(file.read(_LONGEST_BYTES))["values"]}
            except (ValueError, KeyError, TypeError):
                self._note(f"settings version {version} is no plan: it is left out")
                return {}
        return {name: value for name, value in found.items() if not name.startswith(_OF_SUPERVISOR)}


def _is_there(path: str) -> bool:
    """Whether there is such a file. Raises OSError where that is not known."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _read_steps(path: str) -> dict[int, int]:
    """Version -> step, as the supervisor wrote it down; nothing without the file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(_LONGEST_BYTES))["applied"]
        return {int(version): int(step) for version, step in found}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
