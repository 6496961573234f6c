"""The whole result of a profile, from its spans. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prime_train.core.spans import Span
from prime_train.profile.diagnosis import (
    LEAST_GAIN,
    BottleneckDiagnosis,
    Probe,
    ProfileEvidence,
    Recommendation,
    diagnose,
)
from prime_train.profile.measurement import Measurement, fit_engine, measure
from prime_train.profile.rollout_changes import (
    recommend_decode,
    recommend_latency,
    recommend_overlap,
    recommend_prefill,
)
from prime_train.profile.setup import Setup
from prime_train.profile.trainer_changes import (
    recommend_checkpoint,
    recommend_communication,
    recommend_cores,
    recommend_input,
    recommend_train,
)

_Maker = Callable[[ProfileEvidence], Iterator[Recommendation]]
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


def recommend(diagnosis: BottleneckDiagnosis, evidence: ProfileEvidence) -> tuple[Recommendation, ...]:
    """Those for the class of the run first, the most direct one first, then the others by their gain."""
    found = [each for make in _MAKERS for each in make(evidence)]
    if diagnosis.name == "host-starved":  # more or larger devices would wait for the same cores
        found = [*recommend_cores(evidence), *(each for each in found if each.kind != "train-bound")]
    first = [each for each in found if each.kind == diagnosis.name]
    worth = [each for each in found if (each.gain or 0.0) >= LEAST_GAIN]
    others = [each for each in worth if each.kind != diagnosis.name]
    return (*first[:1], *(each for each in first[1:] if each in worth), *sorted(others, key=_by_gain))


def _by_gain(one: Recommendation) -> float:
    return -(one.gain or 0.0)


class Comparison(NamedTuple):
    """A measured figure and its estimate: "step", "memory", "rollouts"."""

    name: str
    unit: str  # "s" or "GiB"
    measured: float
    estimated: float

    @property
    def ratio(self) -> float:
        return self.measured / self.estimated


class Report(NamedTuple):
    """`title`: the run. `notes`: what the reader must know about the measurement."""

    title: str
    warm_up_steps: int
    measured: Measurement
    diagnosis: BottleneckDiagnosis
    recommendations: tuple[Recommendation, ...]
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()


def report_of(
    title: str, spans: Sequence[Span], warm_up_steps: int, setup: Setup, steps: int | None = None
) -> Report | None:
    """The report on the steps after the warm-up; None if the spans have no such step."""
    measured = measure(spans, warm_up_steps, steps)
    if measured is None:
        return None
    probes = [Probe(span.count, span.end_s - span.start_s) for span in spans if span.component == "probe"]
    of_first_rank = {one.times: one for one in reversed(probes)}
    evidence = ProfileEvidence(measured, setup, tuple(of_first_rank.values()), fit_engine(spans))
    diagnosis = diagnose(measured, setup)
    return Report(title, warm_up_steps, measured, diagnosis, recommend(diagnosis, evidence))
