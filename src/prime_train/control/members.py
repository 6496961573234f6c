"""Makes what the device map shows of a run on several machines: where each rank is, and what may be done. Pure.

The supervisor of the run has the last word on each command. A reason here only spares a person a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.control.timeline import shorten
from prime_train.core.machines import name_machine

Row = dict[str, Any]
MEMBERS_SHOWN = 256  # of one run
_HAS_SUPERVISOR = "machine 0 has the supervisor and the folder of the run; Pause frees its GPUs"
_IS_TRAINING = "a test beside a training takes memory and time; Drain tests the machine too"


def name_member(run: str, number: int) -> str:
    """The name on the device map. No host has a slash in its name, so it is none of those."""
    return f"{run}/{name_machine(number)}"


def find_member(rank: int, world_size: int | None, count: int) -> int:
    """The number of the machine on which a rank is. Machines have equally many ranks, in the order of their numbers."""
    return min(rank * count // world_size, count - 1) if world_size else 0


def list_members(
    run: str, count: int, left_out: Mapping[str, Mapping[str, Any] | None], *, is_paused: bool, is_stopping: bool
) -> list[Row]:
    """The machines of a run by their numbers; none for a run on one machine.

    `left_out`: those that are drained, with the result of the test. `refusals`: for each command why it has no effect
    now, or null.
    """
    if count < 2:
        return []
    return [
        {
            "run": run,
            "machine": name_machine(number),
            "drained": name_machine(number) in left_out,
            "note": _describe(left_out, name_machine(number)),
            "refusals": _refuse(number, name_machine(number) in left_out, is_paused, is_stopping),
        }
        for number in range(min(count, MEMBERS_SHOWN))
    ]


def _describe(left_out: Mapping[str, Mapping[str, Any] | None], machine: str) -> str:
    if machine not in left_out:
        return ""
    test = left_out[machine]
    if test is None:
        return "drained; its test is not over"
    result = "passed" if test["passed"] else "FAILED"
    found: str = shorten(f"drained; {result}: {test['what']}")
    return found


def _refuse(number: int, is_drained: bool, is_paused: bool, is_stopping: bool) -> dict[str, str | None]:
    if number == 0 or is_stopping:
        reason = "the run is being stopped" if number else _HAS_SUPERVISOR
        return dict.fromkeys(("drain", "test", "return"), reason)
    return {
        "drain": "it is drained already" if is_drained else None,
        "test": None if is_drained or is_paused else _IS_TRAINING,
        "return": None if is_drained else "it is not drained",
    }
