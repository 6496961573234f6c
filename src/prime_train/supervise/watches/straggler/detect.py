"""Finds slow ranks from the seconds of their own work. Pure: no clock, no I/O.

A rank is slow where the median over its latest steps is far from that of all ranks, both in deviations and in percent:
the median leaves out single pauses, as of a garbage collection, and a deviation is never smaller than 2 %, because the
ranks of a quiet machine hardly differ. Ranks are compared in the same steps and by the same amount of work.
Simulated with 2 to 256 ranks (tests/unit/supervise/watches/straggler/test_detect.py): no false alarm in 2,000 steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from prime_train.core.rank_times import RankStep

WINDOW_STEPS = 20
EVERY_STEPS = 5
_NORMAL = 1.4826  # 1 / the 75 % point in a normal distribution
_LEAST_SPREAD = 0.02  # times the median
_DEVIATIONS = 4.0
_EXCESS = 0.10  # above the median of all ranks
_STRIKES = 3
# Of two ranks the median lies between them, so each is equally far from it. The faster one is the measure then, and the
# rank's own first steps show whether it was always slower.
_PAIR_EXCESS, _OWN_EXCESS, _PAIR_STRIKES = 0.25, 0.15, 5
_BASELINE_ROUNDS = 40  # of EVERY_STEPS: 200 steps
_BASELINE_SHARE = 0.1  # of the newest value in the baseline


@dataclass(frozen=True, slots=True)
class Strikes:
    """How often a rank was found slow, less how often it was not."""

    count: int = 0
    is_slow: bool = False
    baseline_s: float = 0.0  # of a rank of a pair, over its first rounds
    rounds: int = 0


_NONE = Strikes()


def judge_round(ranks: Mapping[int, Strikes], medians_s: Mapping[int, float]) -> dict[int, Strikes]:
    """The strikes of each rank after one more round. `medians_s`: of its own work, over the window."""
    if len(medians_s) == 2:
        slow, most = _find_slow_of_pair(ranks, medians_s), _PAIR_STRIKES
        ranks = {rank: _learn(ranks.get(rank, Strikes()), own_s) for rank, own_s in medians_s.items()}
    else:
        slow, most = _find_slow(medians_s), _STRIKES
    return {rank: _count(ranks.get(rank, _NONE), rank in slow, most) for rank in medians_s}


def _count(before: Strikes, is_bad: bool, most: int) -> Strikes:
    count = min(most, before.count + 1) if is_bad else max(0, before.count - 1)
    if count == before.count:
        return before
    return replace(before, count=count, is_slow=count >= most or (before.is_slow and count > 0))


def _learn(before: Strikes, own_s: float) -> Strikes:
    """The baseline of a rank of a pair grows over its first rounds."""
    if before.rounds >= _BASELINE_ROUNDS:
        return before
    share = _BASELINE_SHARE if before.rounds else 1.0
    return replace(before, baseline_s=before.baseline_s + share * (own_s - before.baseline_s), rounds=before.rounds + 1)


def _find_slow(medians_s: Mapping[int, float]) -> frozenset[int]:
    if len(medians_s) < 3:
        return frozenset()
    middle_s = median(medians_s.values())
    spread_s = _NORMAL * median(abs(own_s - middle_s) for own_s in medians_s.values())
    limit_s = middle_s + max(_DEVIATIONS * max(spread_s, _LEAST_SPREAD * middle_s), _EXCESS * middle_s)
    return frozenset(rank for rank, own_s in medians_s.items() if own_s > limit_s)


def _find_slow_of_pair(ranks: Mapping[int, Strikes], medians_s: Mapping[int, float]) -> frozenset[int]:
    faster_s = min(medians_s.values())
    known = ((rank, own_s, ranks.get(rank, Strikes())) for rank, own_s in medians_s.items())
    return frozenset(
        rank
        for rank, own_s, before in known
        if before.rounds >= _BASELINE_ROUNDS
        and own_s > (1 + _PAIR_EXCESS) * faster_s
        and own_s > (1 + _OWN_EXCESS) * before.baseline_s
    )


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A slow rank, with what it costs: `impact` 0.25 = a step takes 25 % longer than if this rank were as the others.

    `excess`: how much more time its own work takes than that of the median rank.
    """

    rank: int
    excess: float
    impact: float
    is_data: bool  # the larger part of the excess is the wait for rows


@dataclass(frozen=True, slots=True)
class RankHistory:
    """What is remembered of the ranks of one attempt."""

    strikes: Mapping[int, Strikes]
    judged_step: int = 0
    slow: tuple[SlowRank, ...] = ()


NO_RANKS = RankHistory({})


def find_present(times: Mapping[int, Sequence[RankStep]]) -> dict[int, Sequence[RankStep]]:
    """The ranks that take part in the latest steps: the times of a replica that is lost stay where they were."""
    newest = max((steps[-1].step for steps in times.values() if steps), default=0)
    return {rank: steps for rank, steps in times.items() if not steps or newest - steps[-1].step < WINDOW_STEPS}


def follow(history: RankHistory, times: Mapping[int, Sequence[RankStep]]) -> RankHistory:
    """The history after the steps that all ranks have made; unchanged while fewer than EVERY_STEPS came."""
    if len(times) < 2 or not all(times.values()):
        return history
    newest = min(steps[-1].step for steps in times.values())
    if newest < history.judged_step:  # the ranks went back
        return follow(NO_RANKS, times)
    windows = {rank: _take_window(steps, newest) for rank, steps in times.items()}
    is_due = newest - history.judged_step >= EVERY_STEPS
    if not is_due or any(len(window) < WINDOW_STEPS for window in windows.values()):
        return history
    scales = _scale_work(windows)
    data_s = {rank: median(one.data_s for one in window) for rank, window in windows.items()}
    own_s = {
        rank: median(one.data_s + one.compute_s * scales[rank] for one in window) for rank, window in windows.items()
    }
    strikes = judge_round(history.strikes, own_s)
    step_s = median(one.step_s for window in windows.values() for one in window)
    slow = tuple(_describe(rank, own_s, data_s, step_s) for rank, found in sorted(strikes.items()) if found.is_slow)
    return RankHistory(strikes, newest, slow)


def _take_window(steps: Sequence[RankStep], newest: int) -> list[RankStep]:
    return [one for one in steps if newest - WINDOW_STEPS < one.step <= newest]


def _scale_work(windows: Mapping[int, Sequence[RankStep]]) -> dict[int, float]:
    """For each rank the work of the median rank over its own; 1 where the work of any rank is not known."""
    work = {rank: sum(one.work for one in window) for rank, window in windows.items()}
    if not all(work.values()):
        return dict.fromkeys(windows, 1.0)
    middle = median(work.values())
    return {rank: middle / own for rank, own in work.items()}


def _describe(rank: int, own_s: Mapping[int, float], data_s: Mapping[int, float], step_s: float) -> SlowRank:
    """What one rank costs. Without it a step takes as long as with the slowest of the others, or the median rank."""
    others_s = [value for other, value in own_s.items() if other != rank]
    middle_s = median(others_s)
    saved_s = min(max(0.0, own_s[rank] - max(others_s)), 0.99 * step_s)
    excess_s = own_s[rank] - middle_s
    is_data = data_s[rank] - median(data_s.values()) > 0.5 * excess_s
    return SlowRank(rank, excess_s / max(middle_s, 1e-9), saved_s / max(step_s - saved_s, 1e-9), is_data)
