"""Sorts spans into lanes of segments that do not overlap, and finds the window of the counted steps. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from prime_train.core.spans import Span

TRAINER = "trainer-rank"
ROLLOUT = ("rollout", "request")  # lanes of what the trainer may wait for
_MARKS = frozenset(("step", "memory", "probe"))  # spans that are no work


class LaneSegment(NamedTuple):
    """A part of a lane in which one span is the innermost."""

    component: str
    lane: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class StepWindow(NamedTuple):
    """The counted steps of the lane `main`. `steps` are their (start, end), in order."""

    main: str
    start_s: float
    end_s: float
    steps: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


Lanes = dict[str, list[LaneSegment]]


def is_rollout(lane: str) -> bool:
    return lane.startswith(ROLLOUT)


def find_window(spans: Iterable[Span], warm_up_steps: int, steps: int | None = None) -> StepWindow | None:
    """The window of the `steps` steps after the warm-up, as the first rank took them; None if no step is left."""
    by_lane: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        if span.component == "step":
            by_lane[span.lane].append((span.start_s, span.end_s))
    if not by_lane:
        return None
    main = min(by_lane, key=lambda lane: (not lane.startswith(TRAINER), lane))
    ordered = sorted(by_lane[main])[warm_up_steps:]
    counted = tuple(ordered if steps is None else ordered[:steps])
    if not counted or counted[-1][1] <= counted[0][0]:
        return None
    return StepWindow(main, counted[0][0], max(end for _, end in counted), counted)


def sort_into_lanes(spans: Iterable[Span]) -> Lanes:
    """The segments of each lane, in order."""
    by_lane: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.component not in _MARKS and span.end_s > span.start_s:
            by_lane[span.lane].append(span)
    return {lane: flatten(lane, found) for lane, found in by_lane.items()}


def flatten(lane: str, spans: Sequence[Span]) -> list[LaneSegment]:
    """Segments without overlap: at each moment the span that began last, as it is the innermost of nested spans."""
    ordered = sorted(spans, key=lambda span: (span.start_s, -span.end_s))
    times = sorted({time for span in ordered for time in (span.start_s, span.end_s)})
    open_spans: list[tuple[float, float, int]] = []  # (-start, end, number): the innermost is first
    found: list[LaneSegment] = []
    following = 0
    last = -1  # number of the span of the last segment
    for start_s, end_s in pairwise(times):
        while following < len(ordered) and ordered[following].start_s <= start_s:
            heapq.heappush(open_spans, (-ordered[following].start_s, ordered[following].end_s, following))
            following += 1
        while open_spans and open_spans[0][1] <= start_s:
            heapq.heappop(open_spans)
        if not open_spans:
            continue
        number = open_spans[0][2]
        if number == last and found and found[-1].end_s == start_s:
            found[-1] = found[-1]._replace(end_s=end_s)
        else:
            found.append(LaneSegment(ordered[number].component, lane, start_s, end_s))
        last = number
    return found
