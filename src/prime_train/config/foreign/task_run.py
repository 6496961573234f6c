"""Reads the `run` section of a SkyPilot task as the bash script that it is. Runs nothing."""

from __future__ import annotations

import os

from prime_train.config.foreign.follow import find_folder
from prime_train.config.foreign.scripts import read_parts
from prime_train.config.foreign.values import ForeignPart, Open


def read_run(task: ForeignPart) -> tuple[ForeignPart, ...]:
    """The parts of the commands in `run`, each at its line in the file of the task.

    With those of the scripts that they start, if the folder of the task or the working directory is its `workdir`. None
    for a text whose lines are not those of the file, because YAML folds them.
    """
    value = task.values.get("run")
    script = value.text if isinstance(value, Open) else value
    place = task.document.place((*task.at, "run"))
    if not isinstance(script, str) or place is None:
        return ()
    lines = task.document.text.split("\n")
    first, at = script.split("\n", 1)[0].strip(), place.value.line - 1
    for row in (at, at + 1):  # behind `run:`, or below `run: |`
        if row < len(lines) and lines[row].strip().removeprefix("run:").strip() == first:
            # Empty lines above the script give each command its line in the file.
            return read_parts("\n" * row + script, task.document.path, follows=_is_copied(task))
    return ()


def _is_copied(task: ForeignPart) -> bool:
    """Whether the commands have the scripts beside the task: SkyPilot copies `workdir`, and they begin in the copy."""
    name, path = task.values.get("workdir"), task.document.path
    folder = find_folder(name, path) if isinstance(name, str) else None
    beside = (".", os.path.dirname(path) or ".")  # noqa: PTH120 - a text
    return folder is not None and any(os.path.samefile(folder, each) for each in beside)  # noqa: PTH121 - a text
