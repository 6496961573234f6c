"""Reads the curves of a run into a bounded number of points that keep lows and highs. Writes nothing.

The bundled trainer writes every step to metrics.jsonl; for any other one, the events that report progress count.
A step that is there twice, because an attempt repeated it, has the value from the last time.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core.outside import LINE_BYTES, LOG_BYTES, open_regular, parse_json
from prime_train.core.rundir import RunDir
from prime_train.core.units import counted, format_bytes
from prime_train.events import CheckpointStarted, Evaluated, Follower, Phase, Progress, Sampled
from prime_train.events.bounds import MOST_STEPS, MOST_VALUE

MOST_BINS = 4096  # more points than a picture has columns
AXES = ("step", "tokens", "hours")
METRICS = {"loss": "loss", "reward": "reward", "tokens_per_s": "tokens/s", "held_out": "held-out loss"}
_OF_A_STEP = ("loss", "reward", "tokens_per_s")
_BRIEF = (Progress, Phase, CheckpointStarted, Sampled)  # no curve comes from them where metrics.jsonl has the steps


class Point(NamedTuple):
    """The mean, the lowest and the highest value among neighbouring steps, or in one step if there are few.

    `hours` add up the steps themselves: pauses and steps that were repeated are left out. nan: not known.
    """

    step: int  # the last one
    tokens: float
    hours: float
    value: float
    low: float
    high: float


Curve = tuple[Point, ...]


class Curves(NamedTuple):
    """The curves by the names in METRICS; those without a value are left out."""

    by_metric: dict[str, Curve]
    notes: tuple[str, ...]  # what is not drawn

    @property
    def last_step(self) -> int:
        return max((curve[-1].step for name, curve in self.by_metric.items() if name != "held_out"), default=0)


@dataclass(slots=True)
class _Bin:
    """`width` steps. `sums`: sum, count, lowest and highest value for each metric."""

    attempt: int
    step: int
    tokens: float
    seconds: float
    sums: list[list[float]]

    def add(self, values: Sequence[float]) -> None:
        for sums, value in zip(self.sums, values, strict=True):
            if value == value:
                sums[0] += value
                sums[1] += 1
                sums[2] = min(sums[2], value)
                sums[3] = max(sums[3], value)

    def take(self, later: _Bin) -> None:
        """Join the bin with the steps that follow."""
        self.step, self.tokens, self.seconds = later.step, later.tokens, self.seconds + later.seconds
        for mine, other in zip(self.sums, later.sums, strict=True):
            mine[:] = mine[0] + other[0], mine[1] + other[1], min(mine[2], other[2]), max(mine[3], other[3])


@dataclass(slots=True)
class StepBins:
    """Values by step in at most `most_bins` bins. When there are more, each two neighbours become one.

    A step that is not above the one before begins another attempt, and a bin has the values from its last attempt.
    """

    metrics: int
    most_bins: int = MOST_BINS
    width: int = 1
    attempt: int = 0
    last_step: int = -1
    bins: dict[int, _Bin] = field(default_factory=dict)

    def add(self, step: int, tokens: float, seconds: float, values: Sequence[float]) -> None:
        if step <= self.last_step:
            self.attempt += 1
        self.last_step = step
        found = self.bins.get(step // self.width)
        if found is None or found.attempt != self.attempt:
            empty = [[0.0, 0.0, math.inf, -math.inf] for _ in range(self.metrics)]
            found = self.bins[step // self.width] = _Bin(self.attempt, step, tokens, 0.0, empty)
        found.step, found.tokens = step, tokens
        found.seconds += seconds
        found.add(values)
        while len(self.bins) > self.most_bins:
            self._halve()

    def _halve(self) -> None:
        joined: dict[int, _Bin] = {}
        for place in sorted(self.bins):
            earlier = joined.get(place // 2)
            if earlier is None:
                joined[place // 2] = self.bins[place]
            else:
                earlier.take(self.bins[place])
                earlier.attempt = self.bins[place].attempt
        self.width *= 2
        self.bins = joined

    def drop_after(self, step: int) -> None:
        """Forget the steps after `step`, which an attempt repeats."""
        self.bins = {place: found for place, found in self.bins.items() if place * self.width <= step}

    def curve(self, metric: int) -> Curve:
        return tuple(self._points(metric))

    def _points(self, metric: int) -> Iterator[Point]:
        seconds = 0.0
        for place in sorted(self.bins):
            found = self.bins[place]
            seconds += found.seconds
            total, count, low, high = found.sums[metric]
            if count:
                # A long sum may round to a mean beyond all values.
                mean = min(max(total / count, low), high)
                yield Point(found.step, found.tokens, seconds / 3600, mean, low, high)


@dataclass(slots=True)
class _Left:
    """What no curve has."""

    damaged_lines: int = 0
    not_finite: int = 0

    def notes(self) -> Iterator[str]:
        if self.damaged_lines:
            yield f"{counted(self.damaged_lines, 'line')} of metrics.jsonl cannot be read"
        if self.not_finite:
            yield f"{counted(self.not_finite, 'value')} not finite, and not drawn"


def read_curves(run_dir: RunDir) -> Curves:
    """Everything that can be drawn, up to now. Raises UserError where it may not be read."""
    steps, held_out, left = StepBins(len(_OF_A_STEP)), StepBins(1), _Left()
    notes = list(_add_metrics(run_dir.metrics, steps, left))
    _add_events(run_dir, steps, held_out, left)
    found = {name: steps.curve(place) for place, name in enumerate(_OF_A_STEP)}
    times = max(found.values(), key=len)
    found["held_out"] = _at_times(held_out.curve(0), times)
    by_metric = {name: curve for name, curve in found.items() if curve}
    if not times:
        notes.append("no step was recorded")
    if steps.width > 1:
        notes.append(f"each point is {steps.width} steps: mean, lowest and highest")
    return Curves(by_metric, (*notes, *left.notes()))


def _add_metrics(path: Path, steps: StepBins, left: _Left) -> Iterator[str]:
    """Add each line in metrics.jsonl. Yields why it was not read."""
    try:
        file = open_regular(path, path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"metrics.jsonl is not read: {error.strerror or error}"
        return
    with file:
        # A run that is going on writes more meanwhile, which this reading leaves out.
        left_bytes = os.fstat(file.fileno()).st_size
        if left_bytes > LOG_BYTES:
            yield f"metrics.jsonl is not read: it has more than {format_bytes(LOG_BYTES)}"
            return
        while left_bytes > 0 and (line := file.readline(min(left_bytes, LINE_BYTES))):
            left_bytes -= len(line)
            if line.endswith(b"\n"):
                left.damaged_lines += not _add_line(line, steps, left)
            elif left_bytes > 0:
                left.damaged_lines += 1  # too long; a last line without an end is being written


def _add_line(line: bytes, steps: StepBins, left: _Left) -> bool:
    """Whether the line has a step."""
    try:
        raw = parse_json(line, not_finite=True)
        step, seconds = raw.get("step"), _number(raw.get("step_s"))
    except (ValueError, AttributeError):
        return False
    if not isinstance(step, int | float) or isinstance(step, bool) or not 0 <= step <= MOST_STEPS or step != int(step):
        return False
    values = [_number(raw.get(name)) for name in _OF_A_STEP]
    left.not_finite += sum(name in raw and value != value for name, value in zip(_OF_A_STEP, values, strict=True))
    steps.add(int(step), _number(raw.get("tokens_seen")) or math.nan, seconds, values)
    return True


def _number(value: Any) -> float:
    """The number; nan for anything that cannot be drawn."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MOST_VALUE:
        return math.nan
    return float(value)


def _add_events(run_dir: RunDir, steps: StepBins, held_out: StepBins, left: _Left) -> None:
    """Add the evaluations, and the progress where metrics.jsonl has no step."""
    has_steps = bool(steps.bins)
    attempt, before_s = 0, 0.0  # the newest attempt, and when it reported before
    for record in Follower(run_dir.events, brief=_BRIEF if has_steps else ()).stream():
        event = record.event
        if not isinstance(event, Evaluated | Progress):
            continue
        is_first = event.attempt > attempt
        if is_first:
            # Where a trainer that finds its checkpoint itself goes on, only its first report shows.
            attempt = event.attempt
            held_out.drop_after(event.step - 1)
            if not has_steps:
                steps.drop_after(event.step - 1)
        if isinstance(event, Evaluated):
            held_out.add(event.step, math.nan, 0.0, (_number(event.loss),))
            left.not_finite += not math.isfinite(event.loss)
        elif not has_steps:
            # The time before the first report is load and set-up, as far as anyone knows.
            seconds = 0.0 if is_first or not before_s else max(0.0, record.time_s - before_s)
            before_s = record.time_s
            reported = [getattr(event, name) for name in _OF_A_STEP]
            left.not_finite += sum(value is not None and not math.isfinite(value) for value in reported)
            steps.add(event.step, event.tokens_seen or math.nan, seconds, [_number(value) for value in reported])


def _at_times(held_out: Curve, times: Curve) -> Curve:
    """The evaluations at the tokens and hours that their steps have."""
    steps = [point.step for point in times]
    placed = []
    for point in held_out:
        place = bisect_right(steps, point.step) - 1
        at = times[place] if place >= 0 else None
        tokens, hours = (at.tokens, at.hours) if at else (math.nan, math.nan)
        placed.append(point._replace(tokens=tokens, hours=hours))
    return tuple(placed)
