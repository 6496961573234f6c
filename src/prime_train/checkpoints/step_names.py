"""Reads the step of a file from its path below the folder of another trainer's checkpoints. Pure.

A backup keeps such paths whole, because the trainer finds its checkpoints by the names that it gave to them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import NamedTuple

from prime_train.checkpoints.folder_layout import FolderLayout
from prime_train.checkpoints.proofs import show_name
from prime_train.core import outside


class StepName(NamedTuple):
    """`part`: the path of the step folder, or of the file that is a part of a step. `rest`: the name below it."""

    part: str
    rest: str
    step: int | None  # None: only the content has it


def read_name(name: str, form: FolderLayout) -> StepName | None:
    """The part and the step of a path; None for a file that belongs to no step."""
    pieces = name.split("/")
    ends = [len(pieces) - 1] if form.kind == "file" else range(len(pieces) - 1)
    for at in ends:
        match = re.compile(form.step, re.ASCII).fullmatch(pieces[at])
        if match is None or not _may_hold_steps(pieces[:at], form):
            continue
        step = outside.to_count(match[1]) if match.re.groups and match[1] is not None else None
        if step is not None or form.step_key:
            rest = pieces[at] if form.kind == "file" else "/".join(pieces[at + 1 :])
            return StepName("/".join(pieces[: at + 1]), rest, step)
    return None


def _may_hold_steps(folders: list[str], form: FolderLayout) -> bool:
    for below in (*form.below, *form.parts):
        wanted = [] if below == "." else below.split("/")
        if len(wanted) == len(folders) and all(map(fnmatch.fnmatchcase, folders, wanted)):
            return True
    return False


def group_names(names: Iterable[str], step: int, form: FolderLayout) -> dict[str, set[str]] | str:
    """Folder or file of a step -> the names in it that are judged together; what is wrong, where a name is of no step.

    Files beside each other are one group, by the folder that they are in.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        read = read_name(name, form)
        if read is None or read.step not in (None, step):
            return f"{show_name(name)} is no file of a checkpoint of step {step}"
        group = read.part.rpartition("/")[0] if form.kind == "file" else read.part
        found.setdefault(group, set()).add(read.rest)
    return found
