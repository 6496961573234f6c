"""Fits how long an engine's decode step takes for more sequences at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prime_train.core.spans import Span

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
