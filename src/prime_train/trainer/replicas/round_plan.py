"""Plans the rounds of replicas that make some steps alone before they join their weights. Pure: no clock, no torch."""

from __future__ import annotations

from prime_train.spec import RunSpec

ENDLESS_JOIN_S = 86_400.0  # the launcher ends a replica that hangs, so the others may wait for one that works
_STOP_RATIO = 0.25  # of the grace period of a stop; the rest is for the save


def plan_round(step: int, sync_every: int, max_steps: int) -> range:
    """The steps of the round after `step`: up to the next multiple of `sync_every`, or to the last step.

    They depend on these numbers alone, so a round that is repeated has the same steps, as has a run that is resumed.
    """
    return range(step + 1, min((step // sync_every + 1) * sync_every, max_steps) + 1)


def is_due_in(steps: range, interval_steps: int | None) -> bool:
    """Whether a multiple of the interval is in the round. What is due then is done at the end of the round."""
    return interval_steps is not None and steps[-1] // interval_steps > (steps[0] - 1) // interval_steps


def is_near_end(left_steps: int, step_s: float, grace_s: float) -> bool:
    """Whether a round is finished after a request to stop: else its steps so far are given up, and made again later."""
    return left_steps * step_s <= _STOP_RATIO * grace_s


def choose_sum_limit_s(run: RunSpec) -> float | None:
    """How long a sum may take; None where that follows the steps that were seen.

    After a round the fast replicas wait in a sum for the slow ones, so no step shows how long it may take.
    """
    if run.parallel.collective_limit_s is not None or not run.parallel.sync_every:
        return run.parallel.collective_limit_s
    return run.prime_train.heartbeat.slow_phase_limit_s
