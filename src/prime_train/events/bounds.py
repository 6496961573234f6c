"""The range of each number of an event. The writer keeps to it, and a reader refuses a line beyond it. Pure.

Who can write into a run directory can give a line a checksum that fits. A number that no run reaches would then be a
date that no calendar has, a signal to a process that cannot exist, or an axis that no plot can draw.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

Value = TypeVar("Value")

MOST_STEPS = 10**12  # at a microsecond for each, twelve days
MOST_ATTEMPTS = 10**6  # at a second for each, twelve days
# A line has more than 40 bytes, so the file would have 400 GB. A writer that continues after a forged position still
# has as many positions again.
MOST_LINES = 10**10
LATEST_S = 253_402_300_799.0  # the end of the year 9999, the last that a date can show
_MOST_COUNT = 2**53  # a float stores every count up to here; also the steps of a run without an end
MOST_VALUE = 1e100  # of what float32 holds the most is 3e38
_MOST = dict.fromkeys(("step", "resume_step", "newest_complete"), MOST_STEPS)
_MOST |= {"attempt": MOST_ATTEMPTS, "pid": 2**31 - 1}
_CODES = frozenset({"returncode", "exit_code"})
# What a trainer measured may be no number, as after a division by zero. Every other number is finite.
MEASURED = frozenset({"loss", "grad_norm", "reward", "tokens_per_s", "answer_tokens"})


@cache
def range_of(name: str, is_float: bool) -> tuple[float, float]:
    """The least and the most of a field with this name, which holds a float or an int."""
    if is_float:
        most = LATEST_S if name.endswith("_s") and name not in MEASURED else MOST_VALUE
        return -most, most
    if name in _CODES:
        return -(2**31), 2**31 - 1
    return 0, _MOST.get(name, _MOST_COUNT)


def explain_excess(name: str, value: object) -> str:
    """Why a reader refuses the value of a field; "" if it does not."""
    is_float = isinstance(value, float)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if is_float and name in MEASURED and not math.isfinite(value):
        return ""
    least, most = range_of(name, is_float)
    # A comparison with a value that is no number is false.
    return "" if least <= value <= most else f"its {name} is {_short(value)}, outside {least:g} to {most:g}"


def bound_numbers(event: Value) -> Value:
    """The event with every number in the range of its field: readers refuse a line with others."""
    changed: dict[str, Any] = {}
    for f in fields(event):  # type: ignore[arg-type]
        value = getattr(event, f.name)
        if explain_excess(f.name, value):
            least, most = range_of(f.name, isinstance(value, float))
            bounded = 0.0 if math.isnan(value) else min(max(value, least), most)
            changed[f.name] = type(value)(bounded)
    return replace(event, **changed) if changed else event  # type: ignore[type-var]


def _short(value: float) -> str:
    """The number, or its length: Python refuses to print an integer of more than 4,300 digits."""
    digits = value.bit_length() * 0.30103 if isinstance(value, int) else 0
    return f"{value:,}" if digits < 30 else f"an integer of {digits:.0f} digits"
