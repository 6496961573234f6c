"""What one line or row of a trainer shows. Pure; a value that is not in it is None or empty."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, Protocol

from prime_train.registry.trainers import LineKind

MOST_STEPS = 10**15
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf)", re.IGNORECASE)
_LONGEST_NUMBER = 40
_SMALLER_UNITS = ("batch", "micro-batch")  # a step has one or more of them


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """One fact. `step` counts what is done, in `unit`; a loss that is no number is nan.

    `stream`: the writer that the line names, such as "rank3". `phase`: the name of work that is slow on purpose.
    `from_bar`: of a progress bar, which shows not every step.
    `text`: the line itself, cut, for the kinds that a person reads.
    """

    kind: LineKind | Literal["phase"]
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens: float | None = None
    tokens_per_s: float | None = None
    epoch: float | None = None
    took_s: float | None = None
    path: str = ""
    phase: str = ""
    unit: str = ""
    stream: str = ""
    text: str = ""
    from_bar: bool = False

    @property
    def counts_steps(self) -> bool:
        """Whether `step` may be compared with the last step of the run. Batches of an epoch show only that it lives."""
        return self.kind == "step" and self.step is not None and self.unit not in _SMALLER_UNITS


class ProgressReader(Protocol):
    """Takes the bytes of one log or file in order, cut anywhere."""

    def feed(self, data: bytes) -> tuple[ProgressMark, ...]:
        """The marks that became certain with these bytes."""
        ...

    def finish(self) -> tuple[ProgressMark, ...]:
        """The marks of the rest, when no more bytes come."""
        ...


def parse_count(value: object) -> int | None:
    """A number of steps from text such as `1,000`, or from a number; None for anything else."""
    if isinstance(value, str):
        digits = value.replace(",", "").strip()
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_STEPS
    return value if is_count and isinstance(value, int) else None


def parse_number(value: object) -> float | None:
    """A number from text or a number; nan and infinity stay; None for anything else."""
    if isinstance(value, str):
        text = value.replace(",", "").strip()
        return float(text) if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number with more than 308 digits
        return math.inf if value > 0 else -math.inf
