"""Measures a profiled run: time on the critical path by component, calls, idle times, concurrency. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prime_train.core.spans import Span
from prime_train.profile.critical_path import (
    Lanes,
    LaneSegment,
    StepWindow,
    critical_path,
    find_window,
    is_rollout,
    sort_into_lanes,
)

LANE = "engine"  # one span for each step of the engine; `count` = the sequences that got a token
_LEAST_STEPS = 20
_LEAST_SPREAD = 2.0  # largest over smallest number of sequences


class EngineSpeed(NamedTuple):
    """Seconds of a decode step of n sequences: fixed_s + n * sequence_s. Least squares over the measured steps."""

    fixed_s: float
    sequence_s: float

    def tokens_per_s(self, sequences: float) -> float:
        return sequences / max(self.fixed_s + sequences * self.sequence_s, 1e-9)

    def gain(self, before: float, after: float) -> float:
        """Tokens per second with `after` sequences at once over those with `before`."""
        return self.tokens_per_s(after) / self.tokens_per_s(before)


def fit_engine(spans: Iterable[Span]) -> EngineSpeed | None:
    """None if the steps are few, or all have about the same number of sequences."""
    steps = [
        (span.count, span.end_s - span.start_s)
        for span in spans
        if span.lane == LANE and span.component == "decode" and span.count > 0
    ]
    if len(steps) < _LEAST_STEPS or max(n for n, _ in steps) < _LEAST_SPREAD * min(n for n, _ in steps):
        return None
    mean_n = sum(n for n, _ in steps) / len(steps)
    mean_s = sum(seconds for _, seconds in steps) / len(steps)
    variance = sum((n - mean_n) ** 2 for n, _ in steps)
    slope = max(0.0, sum((n - mean_n) * (seconds - mean_s) for n, seconds in steps) / variance)
    return EngineSpeed(max(0.0, mean_s - slope * mean_n), slope)


_CALLS = ("tool", "environment", "queue", "prefill", "decode")
_ENGINE = ("prefill", "decode")
COMPUTING = ("forward", "backward", "forward_backward", "optimizer")
_WORK = frozenset(("data", "forward", "backward", "forward_backward", "optimizer", "communication", "weights"))


class Quantiles(NamedTuple):
    """Seconds."""

    p50_s: float
    p90_s: float
    p99_s: float


class ComponentShare(NamedTuple):
    """One component.

    `critical_s` of all components add up to the time of the steps; `busy_s` counts every lane, also what was hidden.
    `steps` are the seconds of each step on the critical path.
    """

    component: str
    critical_s: float
    busy_s: float
    share: float  # of the critical path, 0 to 1
    steps: Quantiles


class Calls(NamedTuple):
    """The calls of one component in all rollouts or requests."""

    component: str
    calls: int
    per_rollout: float
    mean_s: float
    quantiles: Quantiles
    tokens: int


class MemoryCurve(NamedTuple):
    """Bytes in use in a lane, at seconds since the first counted step."""

    lane: str
    points: tuple[tuple[float, int], ...]

    @property
    def peak_bytes(self) -> int:
        return max((size for _, size in self.points), default=0)


class Measurement(NamedTuple):
    """What the counted steps took. Idle shares are None in a run without rollouts."""

    window: StepWindow
    step_s: tuple[float, ...]
    shares: tuple[ComponentShare, ...]  # largest first
    calls: tuple[Calls, ...]
    trainer_idle: float | None  # share of the time in which the trainer waited for rollouts
    engine_idle: float | None  # share of the time without prefill and decode
    decoding: float | None  # mean number of answers that were decoded at once, while any was
    rollouts: int
    trainer_s: float  # of work in the trainer's lane: a step cannot be shorter by changes elsewhere
    reduced_bytes: int  # of gradients that the first rank exchanged
    memory: tuple[MemoryCurve, ...]
    path: tuple[LaneSegment, ...]
    lanes: Lanes
    cpu_cores: float | None = None  # that the trainer's computing used on average; None where a GPU computes

    @property
    def wall_s(self) -> float:
        return self.window.seconds

    @property
    def steps(self) -> int:
        return len(self.step_s)

    def critical_s(self, *components: str) -> float:
        return sum(one.critical_s for one in self.shares if one.component in components)

    def share(self, *components: str) -> float:
        return self.critical_s(*components) / self.wall_s

    def call(self, component: str) -> Calls | None:
        return next((one for one in self.calls if one.component == component), None)


def measure(spans: Sequence[Span], warm_up_steps: int, steps: int | None = None) -> Measurement | None:
    """The measurement of the steps after the warm-up; None if the spans have no such step."""
    window = find_window(spans, warm_up_steps, steps)
    if window is None:
        return None
    lanes = sort_into_lanes(spans)
    path = critical_path(lanes, window)
    inside = [span for span in spans if span.end_s > window.start_s and span.start_s < window.end_s]
    of_rollouts = [span for span in inside if is_rollout(span.lane)]
    rollouts = {span.lane for span in of_rollouts}
    return Measurement(
        window=window,
        step_s=tuple(end - start for start, end in window.steps),
        shares=_shares(path, lanes, window),
        calls=_calls(of_rollouts, len(rollouts)),
        trainer_idle=_seconds(lanes.get(window.main, []), ("rollouts",), window) / window.seconds if rollouts else None,
        engine_idle=1 - _covered_s(inside, _ENGINE, window) / window.seconds if rollouts else None,
        decoding=_mean_active(of_rollouts, "decode", window) if rollouts else None,
        rollouts=len(rollouts),
        trainer_s=_seconds(lanes.get(window.main, []), _WORK, window),
        reduced_bytes=sum(one.count for one in inside if (one.component, one.lane) == ("communication", window.main)),
        memory=_memory(spans, window),
        path=tuple(_merge(path)),
        lanes=lanes,
        cpu_cores=_cpu_cores(inside, window),
    )


def _cpu_cores(spans: Iterable[Span], window: StepWindow) -> float | None:
    """CPU seconds per second of the trainer's spans of computing, which never sleep."""
    found = [
        (span.cpu_s, span.end_s - span.start_s)
        for span in spans
        if span.lane == window.main and span.component in COMPUTING and span.cpu_s is not None
    ]
    wall_s = sum(seconds for _, seconds in found)
    return sum(cpu_s for cpu_s, _ in found) / wall_s if wall_s > 0 else None


def _shares(path: Iterable[LaneSegment], lanes: Lanes, window: StepWindow) -> tuple[ComponentShare, ...]:
    by_step = _by_step(path, window)
    names = {name for step in by_step for name in step}
    busy: dict[str, float] = defaultdict(float)
    for lane, found in lanes.items():
        for one in found:
            if lane not in (LANE, "weights"):  # their work is in the lanes of rollouts and trainer, too
                busy[one.component] += _inside_s(one, window)
    rows = [
        ComponentShare(
            component=name,
            critical_s=(critical_s := sum(step.get(name, 0.0) for step in by_step)),
            busy_s=max(critical_s, busy[name]),
            share=critical_s / window.seconds,
            steps=quantiles([step.get(name, 0.0) for step in by_step]),
        )
        for name in names | {name for name, seconds in busy.items() if seconds > 0}
    ]
    return tuple(sorted(rows, key=lambda row: (-row.critical_s, -row.busy_s, row.component)))


def _by_step(path: Iterable[LaneSegment], window: StepWindow) -> list[dict[str, float]]:
    """Seconds by component of each step. What is between two steps belongs to the step before."""
    starts = [start for start, _ in window.steps]
    ends = [*starts[1:], window.end_s]
    found: list[dict[str, float]] = [defaultdict(float) for _ in starts]
    for one in path:
        number = max(0, bisect_right(starts, one.start_s) - 1)
        while number < len(starts) and starts[number] < one.end_s:
            seconds = min(one.end_s, ends[number]) - max(one.start_s, starts[number])
            found[number][one.component] += max(0.0, seconds)
            number += 1
    return found


def quantiles(values: Sequence[float]) -> Quantiles:
    """The median, and the values that 90 % and 99 % do not exceed, by linear interpolation; zeros without values."""
    if len(values) < 2:
        return Quantiles(*(list(values) or [0.0]) * 3)
    hundredths = statistics.quantiles(values, n=100, method="inclusive")
    return Quantiles(hundredths[49], hundredths[89], hundredths[98])


def _calls(spans: Sequence[Span], rollouts: int) -> tuple[Calls, ...]:
    found = []
    for component in _CALLS:
        of_it = [span for span in spans if span.component == component]
        if of_it:
            seconds = [span.end_s - span.start_s for span in of_it]
            tokens = sum(span.count for span in of_it)
            count, mean_s = len(of_it), sum(seconds) / len(of_it)
            found.append(Calls(component, count, count / rollouts, mean_s, quantiles(seconds), tokens))
    return tuple(found)


def _inside_s(one: LaneSegment | Span, window: StepWindow) -> float:
    return max(0.0, min(one.end_s, window.end_s) - max(one.start_s, window.start_s))


def _seconds(found: Iterable[LaneSegment], components: Iterable[str], window: StepWindow) -> float:
    wanted = frozenset(components)
    return sum(_inside_s(one, window) for one in found if one.component in wanted)


def _covered_s(spans: Iterable[Span], components: Sequence[str], window: StepWindow) -> float:
    """Seconds of the window in which at least one such span is open."""
    covered_s, until_s = 0.0, window.start_s
    for span in sorted((span for span in spans if span.component in components), key=lambda span: span.start_s):
        start_s, end_s = max(span.start_s, until_s), min(span.end_s, window.end_s)
        covered_s += max(0.0, end_s - start_s)
        until_s = max(until_s, end_s)
    return covered_s


def _mean_active(spans: Sequence[Span], component: str, window: StepWindow) -> float | None:
    covered_s = _covered_s(spans, (component,), window)
    total_s = sum(_inside_s(span, window) for span in spans if span.component == component)
    return total_s / covered_s if covered_s > 0 else None


def _memory(spans: Iterable[Span], window: StepWindow) -> tuple[MemoryCurve, ...]:
    points: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for span in spans:
        if span.component == "memory" and window.start_s <= span.start_s <= window.end_s:
            points[span.lane].append((span.start_s - window.start_s, span.count))
    return tuple(MemoryCurve(lane, tuple(sorted(found))) for lane, found in sorted(points.items()))


def _merge(path: Iterable[LaneSegment]) -> Iterable[LaneSegment]:
    """The path with neighbours of one component and lane as one segment."""
    last: LaneSegment | None = None
    for one in path:
        if last is not None and (last.component, last.lane) == (one.component, one.lane):
            last = last._replace(end_s=one.end_s)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last
