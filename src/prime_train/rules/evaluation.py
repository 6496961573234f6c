"""Evaluations that would not be made. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec


@rule("EVA001", Severity.NOTE)
def no_evaluation_on_the_way(run: RunSpec) -> Iterator[Problem]:
    """eval.interval_steps beyond max_steps leaves the evaluation at the end alone.

    a loss that stops falling is then seen when the run is over

    Bad:
        [eval]
        interval_steps = 2000
    Good:
        [eval]
        interval_steps = 500
    """
    interval, max_steps = run.eval.interval_steps, run.run.max_steps
    if interval is not None and interval > max_steps:
        yield Problem(
            "eval.interval_steps",
            f"the first evaluation is due at step {interval}, and `run.max_steps` is {max_steps}",
            patch={"eval.interval_steps": max(1, max_steps // 10)},
        )
