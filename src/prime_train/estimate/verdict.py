"""Judges whether a need fits into the memory of a GPU, and how probable that is. Pure.

This is the only place that decides it: `estimate`, `find`, the memory rules and the JSON documents show its answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

from prime_train.estimate.values import Interval, RoleMemory

COVERED = 0.95  # the share of measured runs below the upper bound of an interval, and above its lower bound
_SPREADS = NormalDist().inv_cdf(COVERED)


# A bound is not to be trusted to the last twentieth of a GPU: a published run of an 8B model under ZeRO-3 ran out of
# memory on 24 GB, with a bound of 23.
SAFE_SHARE = 0.95
_DOUBT = 0.05  # least probability of each side where nothing similar was measured


class MemoryVerdict(StrEnum):
    """FITS: the upper bound fits. LIKELY: the typical value fits, the upper bound does not."""

    FITS = "fits"
    LIKELY = "likely fits"
    DOES_NOT_FIT = "does not fit"


class Chance(NamedTuple):
    """A verdict, and the probability that the need is not above the room."""

    verdict: MemoryVerdict
    probability: float

    @property
    def text(self) -> str:
        """Examples: "fits", "likely fits (probability 81 %)"."""
        if self.verdict is MemoryVerdict.LIKELY:
            return f"{self.verdict} (probability {self.probability:.0%})".replace("%", " %")
        return str(self.verdict)


CERTAIN = Chance(MemoryVerdict.FITS, 1.0)
IMPOSSIBLE = Chance(MemoryVerdict.DOES_NOT_FIT, 0.0)


def judge(need: Interval, room_bytes: float, safe_share: float = 1.0) -> Chance:
    """Whether `need` fits into `room_bytes`, of which its upper bound may fill `safe_share`."""
    probability = _probability(need, room_bytes)
    if need.high <= room_bytes * safe_share:
        return Chance(MemoryVerdict.FITS, max(COVERED, probability))
    if need.typical <= room_bytes:
        return Chance(MemoryVerdict.LIKELY, min(max(0.5, probability), COVERED))
    return Chance(MemoryVerdict.DOES_NOT_FIT, min(probability, 0.5))


def _probability(need: Interval, room_bytes: float) -> float:
    """The share of a log-normal distribution below the room; it has its own spread above and below the typical value.

    Source: errors of the estimate are factors, and the interval holds 90 % of them (bench/fit_memory.py).
    """
    if room_bytes <= 0 or need.typical <= 0:
        return float(need.typical <= room_bytes)
    bound = need.high if room_bytes >= need.typical else need.low
    if bound <= 0 or bound == need.typical:
        return float(need.typical <= room_bytes)
    spread = abs(math.log(bound / need.typical)) / _SPREADS
    return NormalDist().cdf((math.log(room_bytes) - math.log(need.typical)) / spread)


def judge_role(memory: RoleMemory, room_bytes: float) -> Chance:
    """Whether a role fits into `room_bytes` of a GPU. Without a similar measured run, neither answer is certain."""
    return doubt(judge(memory.need, room_bytes, memory.safe_share), memory)


def doubt(chance: Chance, memory: RoleMemory) -> Chance:
    """The chance, neither certain nor impossible if nothing like the role was measured."""
    if not memory.unlike:
        return chance
    return chance._replace(probability=min(max(chance.probability, _DOUBT), 1 - _DOUBT))


def worst_of(chances: Iterable[Chance]) -> Chance:
    """The verdict on several needs that must all fit; CERTAIN without any."""
    order = tuple(MemoryVerdict)
    known = list(chances)
    verdict = max((chance.verdict for chance in known), key=order.index, default=MemoryVerdict.FITS)
    return Chance(verdict, math.prod(chance.probability for chance in known))
