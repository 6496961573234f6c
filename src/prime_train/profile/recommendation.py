"""Computes from a measurement what to change, and how much faster the run gets. Pure.

A gain removes time from the critical path and changes nothing else, so it is an upper bound where other work then
becomes critical. The trainer's own work is such a bound, and is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prime_train.profile.diagnosis import Diagnosis
from prime_train.profile.evidence import LEAST_GAIN, Evidence, Recommendation
from prime_train.profile.rollout_changes import (
    recommend_decode,
    recommend_latency,
    recommend_overlap,
    recommend_prefill,
)
from prime_train.profile.trainer_changes import (
    recommend_checkpoint,
    recommend_communication,
    recommend_input,
    recommend_train,
)

_Maker = Callable[[Evidence], Iterator[Recommendation]]
_MAKERS: tuple[_Maker, ...] = (
    recommend_latency,
    recommend_decode,
    recommend_prefill,
    recommend_overlap,
    recommend_train,
    recommend_communication,
    recommend_input,
    recommend_checkpoint,
)


def recommend(diagnosis: Diagnosis, evidence: Evidence) -> tuple[Recommendation, ...]:
    """Those for the class of the run first, the most direct one first, then the others by their gain."""
    found = [each for make in _MAKERS for each in make(evidence)]
    first = [each for each in found if each.kind == diagnosis.name]
    worth = [each for each in found if (each.gain or 0.0) >= LEAST_GAIN]
    others = [each for each in worth if each.kind != diagnosis.name]
    return (*first[:1], *(each for each in first[1:] if each in worth), *sorted(others, key=_by_gain))


def _by_gain(one: Recommendation) -> float:
    return -(one.gain or 0.0)
