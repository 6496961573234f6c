"""The critical path of the counted steps: what the run waited for at each moment. Pure.

The path is followed from the end of the last step back to the start of the first one. Work belongs to itself. A wait
belongs to what ended it: the wait for rollouts to the rollout that was ready last, the wait of a rollout for its turn
to the rollout that made room, a collective to the rank that came last. So the times of the path add up to the time of
the steps, and work that is hidden behind other work is not on it.

Source: the last-arrival rule of Yang and Miller, "Critical path analysis for the execution of parallel and distributed
programs", ICDCS 1988.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from prime_train.profile.lanes import TRAINER, Lanes, LaneSegment, StepWindow, is_rollout

OTHER = "other"
_WAITS = frozenset(("rollouts", "queue"))
_TOLERANCE_S = 2e-3  # between the end of a cause and the end of the wait for it, as two threads write them


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
