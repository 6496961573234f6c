"""Finds the changes after which a run fits: the fewest whose speed is near that of the fastest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from prime_train.estimate.candidate_changes import Assignments, CandidateChange, Value, apply_changes, value_of
from prime_train.estimate.values import find_largest
from prime_train.spec import RunSpec

_STEP_TOKENS = 256
_MOST_TOGETHER = 6  # changes tried together in every combination; a longer chain is tried once
_NEAR_FASTEST = 0.95  # share of the highest speed at which fewer changes are preferred


class Fit(NamedTuple):
    """Bytes needed on one GPU, and bytes that may be used there."""

    needed_bytes: float
    limit_bytes: float

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.limit_bytes

    @property
    def missing_bytes(self) -> float:
        """Negative if the run fits."""
        return self.needed_bytes - self.limit_bytes


FitOf = Callable[[RunSpec], Fit]
SpeedOf = Callable[[RunSpec], float]  # tokens per second; 0 if not known


class Chosen(NamedTuple):
    """Changes with their numbers chosen, in the order in which they apply."""

    changes: tuple[CandidateChange, ...]
    assignments: Assignments


def choose(run: RunSpec, fit_of: FitOf, changes: Sequence[CandidateChange], speed_of: SpeedOf) -> Chosen | None:
    """The changes after which the run fits; None if all together are not enough.

    Changes that keep the training what it is come before those that round its numbers, and these before those that
    train something else. Of the combinations that fit, the one with the fewest changes wins among those that reach 95 %
    of the speed of the fastest.
    """
    for kind in sorted({change.kind for change in changes}):
        allowed = [change for change in changes if change.kind <= kind]
        chain = _chain(run, fit_of, allowed)
        if chain is not None:  # else no part of the changes is enough either
            found = list(_find_fitting(run, fit_of, allowed)) or [chain]
            speeds = [speed_of(apply_changes(run, one.assignments)) for one in found]
            near = [one for one, speed in zip(found, speeds, strict=True) if speed >= _NEAR_FASTEST * max(speeds)]
            fewest = min(len(one.changes) for one in near)
            return max((one for one in near if len(one.changes) == fewest), key=lambda one: speeds[found.index(one)])
    return None


def _find_fitting(run: RunSpec, fit_of: FitOf, changes: Sequence[CandidateChange]) -> Iterator[Chosen]:
    """The combinations of up to six changes after which the run fits.

    Those that contain a smaller one are left out: each change costs speed.
    """
    enough: list[set[CandidateChange]] = []
    for count in range(1, _MOST_TOGETHER + 1):
        for together in combinations(changes, count):
            if not _go_together(together) or any(smaller <= set(together) for smaller in enough):
                continue
            chosen = _apply_in_turn(run, fit_of, together)
            if fit_of(apply_changes(run, chosen.assignments)).fits:
                if all(change.least is None for change in together):  # beside another change a number may be larger
                    enough.append(set(together))
                yield chosen


def _go_together(changes: Sequence[CandidateChange]) -> bool:
    """False if one change contains or replaces another."""
    groups = [change.group for change in changes if change.group]
    return len(groups) == len(set(groups))


def _apply_in_turn(run: RunSpec, fit_of: FitOf, changes: Sequence[CandidateChange]) -> Chosen:
    """The changes, those with a number last, because the number depends on what the others leave."""
    ordered = tuple(sorted(changes, key=lambda change: change.least is not None))
    so_far, assignments = run, dict[str, Value]()
    for change in ordered:
        chosen = choose_number(so_far, fit_of, change)
        so_far = apply_changes(so_far, chosen)
        assignments.update(chosen)
    return Chosen(ordered, tuple(assignments.items()))


def _chain(run: RunSpec, fit_of: FitOf, changes: Sequence[CandidateChange]) -> Chosen | None:
    """All changes that help, one after another, until the run fits; None if it never does."""
    so_far, gap, used = run, fit_of(run), list[CandidateChange]()
    assignments: dict[str, Value] = {}
    for change in changes:
        chosen = choose_number(so_far, fit_of, change)
        following = apply_changes(so_far, chosen)
        after = fit_of(following)
        if after.missing_bytes >= gap.missing_bytes:
            continue
        so_far, gap = following, after
        assignments.update({field: value for field, value in chosen if value_of(run, field) != value})
        used.append(change)
        if after.fits:
            return Chosen(tuple(used), tuple(assignments.items()))
    return None


def choose_number(run: RunSpec, fit_of: FitOf, change: CandidateChange) -> Assignments:
    """The assignments with their number chosen: the largest that fits, or the smallest if none does."""
    if change.least is None:
        return change.assignments
    (field, top), *rest = change.assignments
    step = _STEP_TOKENS if field.endswith("ctx_tokens") else 1
    assert isinstance(top, int)  # only a whole number has a least

    def fits(steps: int) -> bool:
        return fit_of(apply_changes(run, ((field, steps * step), *rest))).fits

    number = max(change.least, step * find_largest(change.least // step, top // step, fits))
    while change.divides and number > 1 and change.divides % number:
        number -= 1
    return ((field, number), *rest)
