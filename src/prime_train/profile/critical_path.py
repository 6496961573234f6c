"""Sorts spans into lanes, and finds the critical path: what the run waited for at each moment. Pure.

The path is followed from the end of the last step back to the start of the first one. Work belongs to itself. A wait
belongs to what ended it: the wait for rollouts to the rollout that was ready last, the wait of a rollout for its turn
to the rollout that made room, a collective to the rank that came last. So the times of the path add up to the time of
the steps, and work that is hidden behind other work is not on it.
Source: the last-arrival rule of Yang and Miller, "Critical path analysis for the execution of parallel and distributed
programs", ICDCS 1988.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from prime_train.core.spans import Span

TRAINER = "trainer-rank"
ROLLOUT = ("rollout", "request")  # lanes of what the trainer may wait for
_MARKS = frozenset(("step", "memory", "probe"))  # spans that are no work


OTHER = "other"
_WAITS = frozenset(("rollouts", "queue"))
_TOLERANCE_S = 2e-3  # between the end of a cause and the end of the wait for it, as two threads write them


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


class _Place(NamedTuple):
    """A moment, and the lane that the path is on before it."""

    lane: str
    at_s: float


class _Ends:
    """Work by the time of its end, over the lanes of `accepts`."""

    def __init__(self, lanes: Lanes, accepts: Callable[[str], bool]) -> None:
        work = [one for lane, found in lanes.items() if accepts(lane) for one in found if one.component not in _WAITS]
        self._ordered = sorted(work, key=lambda one: one.end_s)
        self._end_s = [one.end_s for one in self._ordered]

    def last(self, at_s: float, after_s: float, not_in: str) -> LaneSegment | None:
        """The last one that ended until `at_s` and after `after_s`, in another lane."""
        for number in range(bisect_right(self._end_s, at_s + _TOLERANCE_S) - 1, -1, -1):
            one = self._ordered[number]
            if one.end_s <= after_s:
                return None
            if one.lane != not_in and one.start_s < at_s:
                return one
        return None


def critical_path(lanes: Lanes, window: StepWindow) -> list[LaneSegment]:
    """The path through the window, in order of time. Its segments touch and cover the window exactly."""
    return sorted(_Walk(lanes).back(window), key=lambda one: one.start_s)


class _Walk:
    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._starts = {lane: [one.start_s for one in found] for lane, found in lanes.items()}
        self._rollouts = _Ends(lanes, is_rollout)
        self._causes = _Ends(lanes, lambda lane: is_rollout(lane) or lane.startswith(TRAINER))
        self._trainers = [lane for lane in lanes if lane.startswith(TRAINER)]

    def back(self, window: StepWindow) -> Iterator[LaneSegment]:
        """The segments of the path from its end to its start."""
        place = _Place(window.main, window.end_s)
        while place.at_s > window.start_s:
            part, place = self._step(place, window)
            if part is not None:
                cut = part._replace(start_s=max(part.start_s, window.start_s))
                if cut.seconds > 0:
                    yield cut

    def _step(self, place: _Place, window: StepWindow) -> tuple[LaneSegment | None, _Place]:
        """The part of the path that ends at `place`, and the place before it. Each second step goes back in time."""
        lane, at_s = place
        here = next(self._back_from(lane, at_s), None)  # at that moment, else before it
        if here is None:  # the lane begins here
            cause = self._causes.last(at_s, window.start_s, lane) if lane != window.main else None
            if cause is None:
                return LaneSegment(OTHER, lane, window.start_s, at_s), _Place(lane, window.start_s)
            return _blame(OTHER, lane, cause.end_s, at_s), _Place(cause.lane, min(at_s, cause.end_s))
        if here.end_s < at_s:  # between two spans
            return LaneSegment(OTHER, lane, here.end_s, at_s), _Place(lane, here.end_s)
        if here.component in _WAITS:
            ends = self._rollouts if here.component == "rollouts" else self._causes
            cause = ends.last(at_s, here.start_s, lane)
            if cause is not None:
                return _blame(here.component, lane, cause.end_s, at_s), _Place(cause.lane, min(at_s, cause.end_s))
        if here.component == "communication" and (late := self._last_to_join(here, at_s)) is not None:
            return LaneSegment("communication", late.lane, late.start_s, at_s), _Place(late.lane, late.start_s)
        return here._replace(end_s=at_s), _Place(lane, here.start_s)

    def _back_from(self, lane: str, at_s: float) -> Iterator[LaneSegment]:
        """The segments of a lane before a moment, the last one first. Their ends are cut at the moment."""
        for number in range(bisect_left(self._starts.get(lane, []), at_s) - 1, -1, -1):
            found = self._lanes[lane][number]
            yield found._replace(end_s=min(found.end_s, at_s))

    def _last_to_join(self, collective: LaneSegment, at_s: float) -> LaneSegment | None:
        """The collective of the rank that began it last, if that is another rank."""
        joined = [
            one
            for lane in self._trainers
            if lane != collective.lane
            # The other rank may have left the collective a moment earlier, and be in its next segment.
            for one in islice(self._back_from(lane, at_s), 2)
            if one.component == "communication" and one.end_s > collective.start_s
        ]
        late = max(joined, key=lambda one: one.start_s, default=None)
        return late if late is not None and late.start_s > collective.start_s else None


def _blame(component: str, lane: str, start_s: float, end_s: float) -> LaneSegment | None:
    return LaneSegment(component, lane, start_s, end_s) if end_s > start_s else None
