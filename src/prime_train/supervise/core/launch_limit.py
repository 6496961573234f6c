"""Limits the launches of one supervisor by what it did itself, not by the events. Pure: no clock, no I/O.

The state comes from files, and files can be damaged or written by others. The policy decides by the state; this limit
holds also where the state never changes, so a damaged file cannot cause thousands of launches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prime_train.supervise.core.policy import Policy, compute_backoff_s

LONG_S = 600.0  # an attempt that lived for so long is no sign of a loop; 144 of them in a day do no harm
SPARE = 2  # attempts beyond those of the policy, which does not count every attempt


@dataclass(frozen=True, slots=True)
class Launched:
    """The launches of this process. Times are those of the monotonic clock."""

    fruitless: int = 0  # in a row: short, and without a newer complete checkpoint than any before
    best_complete: int = 0
    latest_s: float | None = None


def count(launched: Launched, newest_complete: int, now_s: float) -> Launched:
    """After one more launch, which found `newest_complete` on the disk."""
    grew = newest_complete > launched.best_complete
    was_long = launched.latest_s is not None and now_s - launched.latest_s >= LONG_S
    fruitless = 0 if grew or was_long or launched.latest_s is None else launched.fruitless + 1
    return replace(
        launched,
        fruitless=fruitless,
        best_complete=max(launched.best_complete, newest_complete),
        latest_s=now_s,
    )


def is_spent(launched: Launched, policy: Policy) -> bool:
    """Whether no launch may follow. A run whose events are sound is ended by the policy before this."""
    return launched.fruitless >= policy.max_fruitless_attempts + len(policy.micro_batches) + SPARE


def earliest_s(launched: Launched, policy: Policy) -> float:
    """When the next launch may happen. It is that of the policy in a run whose events are sound."""
    if launched.latest_s is None or launched.fruitless == 0:
        return 0.0
    return launched.latest_s + compute_backoff_s(launched.fruitless, policy)
