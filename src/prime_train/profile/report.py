"""The whole result of a profile, from its spans, or those that the rows of prime-rl's metrics.jsonl stand for. Pure.

prime-rl measures how long each part of a step took, and not when. So the spans of a step have the measured lengths, and
an assumed order. What the wait for rollouts consists of is not in the file.
Source: prime-rl 2026-01 to 2026-08, trainer/rl/train.py and trainer/sft/train.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.core.spans import Span
from prime_train.profile.critical_path import TRAINER
from prime_train.profile.diagnosis import BottleneckDiagnosis, Probe, ProfileEvidence, Recommendation, Setup, diagnose
from prime_train.profile.measurement import Measurement, fit_engine, measure
from prime_train.profile.recommendations import recommend

_LANE = f"{TRAINER}0"
_PARTS = (
    ("time/wait_for_batch", "rollouts"),
    ("time/load_data", "data"),
    ("time/forward_backward", "forward_backward"),
    ("time/save_ckpt", "checkpoint"),
    ("time/broadcast_weights", "weights"),
)
_MEMORY = "perf/peak_memory"  # GiB
_LONGEST_S = 1e6


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
    diagnosis = diagnose(measured)
    return Report(title, warm_up_steps, measured, diagnosis, recommend(diagnosis, evidence))


def spans_of_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Span]:
    """The spans of every step that has a row of times, by its last row. The orchestrator writes rows of its own."""
    by_step = {step: row for row in rows if (step := _step(row)) is not None and _PARTS[2][0] in row}
    now_s = 0.0
    for step, row in sorted(by_step.items()):
        parts = [(component, _seconds(row, key)) for key, component in _PARTS]
        step_s = max(_seconds(row, "time/step"), sum(seconds for _, seconds in parts))
        if step_s <= 0:
            continue
        yield Span("step", _LANE, now_s, now_s + step_s, step)
        at_s = now_s
        for component, seconds in parts:
            if seconds > 0:
                yield Span(component, _LANE, at_s, at_s + seconds, step)
            at_s += seconds
        now_s += step_s
        if peak_gib := _seconds(row, _MEMORY):
            yield Span("memory", _LANE, now_s, now_s, step, round(peak_gib * 2**30))


def idle_orchestrator(rows: Iterable[Mapping[str, Any]], warm_up_steps: int, steps: int | None = None) -> float | None:
    """The share of the orchestrator's time in which it waited for the trainer; None without such rows."""
    by_step = {step: row for row in rows if (step := _step(row)) is not None and "time/wait_for_policy" in row}
    counted = [row for _, row in sorted(by_step.items())][warm_up_steps:][:steps]
    total_s = sum(_seconds(row, "time/step") for row in counted)
    waited_s = sum(_seconds(row, "time/wait_for_policy") for row in counted)
    return min(1.0, waited_s / total_s) if total_s > 0 else None


def _step(row: Mapping[str, Any]) -> int | None:
    step = row.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _seconds(row: Mapping[str, Any], key: str) -> float:
    """A number of the row that is not negative; 0.0 if it has none."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return min(max(0.0, float(value)), _LONGEST_S)
