"""The whole result of a profile, from its spans. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prime_train.core.spans import Span
from prime_train.profile.diagnosis import BottleneckDiagnosis, Probe, ProfileEvidence, Recommendation, Setup, diagnose
from prime_train.profile.measurement import Measurement, fit_engine, measure
from prime_train.profile.recommendations import recommend


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
