"""Estimates from a driver's signals whether a GPU fails within a day, and learns from the test after each drain. Pure.

The estimate is logistic: each signal times a weight that a person can read (registry/gpu_risk.toml). Counters are
compared with those of a day before, and corrected errors with the other GPUs of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from prime_train.registry.gpu_risk import LARGEST, RiskModel
from prime_train.supervise.watches.gpu.history import HOT, GpuHistory, find_gpu, identify_gpu
from prime_train.supervise.watches.gpu.samples import GpuReading, GpuSample, Message, Xid

DAY_S = 24 * 3600.0
RECENT_S = 600.0
POINT_EVERY_S = 60.0
SAME_XID_S = 10.0  # the driver's library and the kernel's log report an error each
CRITICAL_XIDS = frozenset({46, 48, 64, 74, 79, 94, 95, 119, 120})
REMAP_XIDS = frozenset({63, 92})
_MOST_XIDS = 1000
_NEAR_SLOWDOWN_C = 3
_FEW_CORRECTED = 100.0  # in a day
_TIMES_MEDIAN = 10.0
_USUAL_REPLAYS = 10.0  # in a minute
_LEARNING_RATE = 0.1  # one test that a GPU passes must not blind the estimate for all others


class _Point(NamedTuple):
    """A GPU at one moment. None: the driver does not report it."""

    taken_s: float
    corrected: int | None
    uncorrected: int | None
    rows: int | None
    replays: int | None
    is_throttled: bool
    is_hot: bool


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """The last day of one GPU. Its test teaches from `suspected`, its signals when it became suspect, else `latest`."""

    points: tuple[_Point, ...] = ()
    xids: tuple[tuple[float, int], ...] = ()  # time and number
    suspected: Mapping[str, float] | None = None
    latest: Mapping[str, float] = field(default_factory=dict)  # at the last look
    failures: int = 0  # tests that it failed
    passed: bool = False  # its latest test


@dataclass(frozen=True, slots=True)
class RiskHistory:
    """What is remembered of all GPUs, and the model as it has been learned so far."""

    model: RiskModel
    gpus: Mapping[str, GpuRecord] = field(default_factory=dict)
    learned: tuple[tuple[str, str], ...] = ()  # request and GPU of each test that counts


class DrainOutcome(NamedTuple):
    """The test of a GPU, after a drain for any reason."""

    request_id: str
    gpu: str
    passed: bool


class GpuRisk(NamedTuple):
    """The risk of one GPU now."""

    gpu: GpuSample
    risk: float
    signals: Mapping[str, float]
    is_suspect: bool

    def name_reasons(self, model: RiskModel) -> str:
        """The signals that count most, largest first: "remap_xids 0.7, remap_pending 1"."""
        parts = {name: model.weights.get(name, 0.0) * value for name, value in self.signals.items()}
        largest = sorted((name for name, part in parts.items() if part > 0), key=lambda name: -parts[name])
        return ", ".join(f"{name} {self.signals[name]:.2g}" for name in largest[:3]) or "no signal"


def remember_risk(
    history: RiskHistory, memory: GpuHistory, messages: Sequence[Message], outcomes: Sequence[DrainOutcome]
) -> RiskHistory:
    """The history after the messages of a look and the tests known at it. `memory`: of the watch, after them."""
    gpus = dict(history.gpus)
    for message in messages:
        if isinstance(message, Xid) and (gpu := find_gpu(memory, message)) is not None:
            name = identify_gpu(gpu)
            gpus[name] = _add_xid(gpus.get(name, GpuRecord()), message.taken_s, message.code)
        elif isinstance(message, GpuReading):
            for gpu in memory.gpus:
                name = identify_gpu(gpu)
                gpus[name] = _add_point(gpus.get(name, GpuRecord()), gpu, message.taken_s)
    history = replace(history, gpus=gpus)
    for outcome in outcomes:
        history = _learn_outcome(history, outcome)
    return history


def _add_xid(record: GpuRecord, taken_s: float, code: int) -> GpuRecord:
    if any(other == code and abs(taken_s - at_s) < SAME_XID_S for at_s, other in record.xids):
        return record
    kept = tuple(one for one in record.xids if taken_s - one[0] <= DAY_S)
    return replace(record, xids=(*kept, (taken_s, code))[-_MOST_XIDS:])


def _add_point(record: GpuRecord, gpu: GpuSample, taken_s: float) -> GpuRecord:
    if gpu.fault or (record.points and taken_s - record.points[-1].taken_s < POINT_EVERY_S):
        return record
    hot_c = None if gpu.slowdown_c is None else gpu.slowdown_c - _NEAR_SLOWDOWN_C
    is_hot = hot_c is not None and gpu.temperature_c is not None and gpu.temperature_c >= hot_c
    counters = (gpu.corrected_errors, gpu.uncorrected_errors, gpu.remapped_rows, gpu.pcie_replays)
    point = _Point(taken_s, *counters, bool((gpu.slow_reasons or 0) & HOT), is_hot)
    return replace(record, points=(*_thin_out(record.points, taken_s), point))


def _thin_out(points: Sequence[_Point], now_s: float) -> tuple[_Point, ...]:
    """The points of the last minutes, and before that the first of each ten minutes: each look reads all of them."""
    recent = [one for one in points if now_s - one.taken_s <= RECENT_S]
    older = (one for one in reversed(points) if RECENT_S < now_s - one.taken_s <= DAY_S)
    first_of = {int(one.taken_s // RECENT_S): one for one in older}
    return (*reversed(first_of.values()), *recent)


def judge_risks(history: RiskHistory, memory: GpuHistory) -> tuple[RiskHistory, tuple[GpuRisk, ...]]:
    """The risk of each GPU, and the history that knows which ones are suspect."""
    gpus = dict(history.gpus)
    corrected = {name: _grown(record.points, 1, DAY_S) for name, record in gpus.items()}
    found: list[GpuRisk] = []
    for gpu in memory.gpus:
        name = identify_gpu(gpu)
        record, others = gpus.get(name, GpuRecord()), [count for other, count in corrected.items() if other != name]
        usual = _TIMES_MEDIAN * median(others) if others else 0.0
        signals = read_signals(record, gpu, max(usual, _FEW_CORRECTED))
        risk = history.model.estimate(signals)
        limit = history.model.returned_above if record.passed else history.model.suspect_above
        found.append(GpuRisk(gpu, risk, signals, risk > limit))
        is_new = risk > limit and record.suspected is None
        gpus[name] = replace(record, latest=signals, suspected=signals if is_new else record.suspected)
    return replace(history, gpus=gpus), tuple(found)


def read_signals(record: GpuRecord, gpu: GpuSample, usual_corrected: float) -> dict[str, float]:
    """Each signal of the model as a number from 0 on. What the driver does not report counts as 0."""
    newest_s = record.points[-1].taken_s if record.points else 0.0
    codes = [code for at_s, code in record.xids if newest_s - at_s <= DAY_S]
    recent = [one for one in record.points if newest_s - one.taken_s <= RECENT_S]
    span_min = max(1.0, (newest_s - recent[0].taken_s) / 60) if recent else 1.0
    replays = _grown(record.points, 4, RECENT_S) / span_min
    return {
        "critical_xids": math.log1p(sum(code in CRITICAL_XIDS for code in codes)),
        "remap_xids": math.log1p(sum(code in REMAP_XIDS for code in codes)),
        "remap_pending": float(bool(gpu.remap_pending)),
        "remap_failed": float(bool(gpu.remap_failed)),
        "uncorrected_errors": math.log1p(_grown(record.points, 2, DAY_S)),
        "remapped_rows": math.log1p(_grown(record.points, 3, DAY_S)),
        "corrected_errors": math.log2(max(1.0, _grown(record.points, 1, DAY_S) / usual_corrected)),
        "throttled": _share([one.is_throttled for one in recent]),
        "pcie_replays": math.log2(max(1.0, replays / _USUAL_REPLAYS)),
        "hot": _share([one.is_hot for one in recent]),
        "earlier_failures": float(record.failures),
    }


def _share(flags: Sequence[bool]) -> float:
    """The share of the flags that are set, over at least ten minutes of points: one look is no state that lasts."""
    return sum(flags) / max(len(flags), RECENT_S / POINT_EVERY_S)


def _grown(points: Sequence[_Point], at: int, within_s: float) -> float:
    """How much a counter grew. A counter that went back, as after a reset of the driver, counts from there."""
    recent = (one[at] for one in points if points[-1].taken_s - one.taken_s <= within_s)
    values = [value for value in recent if value is not None]
    return float(sum(max(0, later - earlier) for earlier, later in pairwise(values)))


def _learn_outcome(history: RiskHistory, outcome: DrainOutcome) -> RiskHistory:
    """Move the weights a step towards the outcome, once for each test. What came before the test is forgotten."""
    about = (outcome.request_id, outcome.gpu)
    record = history.gpus.get(outcome.gpu)
    if about in history.learned or record is None:
        return history
    signals = record.latest if record.suspected is None else record.suspected
    model = history.model
    if signals:  # else the test is of an earlier supervisor, which has learned from it
        model = teach(model, signals, failed=not outcome.passed)
    tested = GpuRecord(record.points[-1:], failures=record.failures + (not outcome.passed), passed=outcome.passed)
    gpus = {**history.gpus, outcome.gpu: tested}
    return RiskHistory(model, gpus, (*history.learned, about)[-_MOST_XIDS:])


def teach(model: RiskModel, signals: Mapping[str, float], *, failed: bool) -> RiskModel:
    """One step down the gradient of the logistic loss. No weight leaves its sign: each signal is a sign of trouble.

    Bounded, so that what was learned can be read again.
    """
    error = _LEARNING_RATE * (float(failed) - model.estimate(signals))
    moved = {name: old + error * signals.get(name, 0.0) for name, old in model.weights.items()}
    weights = {name: min(LARGEST, max(0.0, weight)) for name, weight in moved.items()}
    return replace(model, bias=min(LARGEST, max(-LARGEST, model.bias + error)), weights=weights)
