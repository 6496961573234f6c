"""Reads registry/xids.toml: the numbered errors of NVIDIA's driver, and the response of a run to each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import tomli

from prime_train.registry.gpus import data_file


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One error number. registry/xids.toml explains the fields."""

    code: int
    name: str
    nvidia_action: str
    answer: Literal["note", "alert", "restart"]
    cause_class: str
    leave_out: bool
    why: str
    fix: str
    source: str
    as_of: str
    only_with: str = ""


@cache
def xids() -> dict[int, XidEntry]:
    with open(data_file("xids.toml"), "rb") as file:
        return {entry["code"]: XidEntry(**entry) for entry in tomli.load(file)["xid"]}


def xid(code: int) -> XidEntry:
    """The entry of a number; a placeholder for a number that is not in the table."""
    return xids().get(code) or XidEntry(
        code,
        name="not in registry/xids.toml",
        nvidia_action="",
        answer="alert",
        cause_class="hardware",
        leave_out=False,
        why="a later driver may know more errors than the table",
        fix="look the number up: docs.nvidia.com/deploy/xid-errors",
        source="",
        as_of="",
    )
