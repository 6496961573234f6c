"""The sequences and the learning rate of a step for the replicas that are there. Pure: no clock, no torch.

Both follow the replicas where `batch.with_replicas` wants it. The rate follows by the ratio, arXiv 1706.02677, s. 2.1,
or by its square root, which suits Adam, arXiv 2205.10287, s. 4. Every replica has the quorum of each step, and one that
joins takes the ramp over with the weights, so all have the same rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prime_train.spec import RunSpec
from prime_train.spec.answers import sequences_in_step


def count_sequences(run: RunSpec, step: int, present: int) -> int:
    """The sequences of a step. At least one, because a step without any has no loss."""
    sequences = sequences_in_step(run, step)
    if run.batch.with_replicas == "constant":
        return sequences
    return max(1, sequences * present // run.parallel.replicas)


def find_rate_ratio(run: RunSpec, present: int) -> float:
    """The learning rate with so many replicas, as a fraction of the rate with all."""
    ratio = present / run.parallel.replicas
    match run.batch.with_replicas:
        case "linear":
            return ratio
        case "sqrt":
            return math.sqrt(ratio)
        case "constant" | "same_rate":
            return 1.0


@dataclass(frozen=True, slots=True)
class RateRamp:
    """The way of the ratio to that of the replicas in the latest step. The default is the rate with all replicas."""

    before: float = 1.0  # in the step before the first one
    end: float = 1.0
    first_step: int = 1
    steps: int = 0  # 0 = there at once

    def ratio(self, step: int) -> float:
        """The learning rate of a step as a fraction of that of the schedule. `step` is not before the first one."""
        done = step + 1 - self.first_step
        if done >= self.steps:
            return self.end
        return self.before + (self.end - self.before) * done / self.steps

    def follow(self, run: RunSpec, step: int, present: int) -> RateRamp:
        """The ramp of this step: another one where another rate belongs to its replicas."""
        end = find_rate_ratio(run, present)
        if end == self.end:
            return self
        return RateRamp(self.ratio(step - 1), end, step, run.batch.rate_ramp_steps)

    def position(self) -> dict[str, Any]:
        """What a resumed run and a replica that joins need: JSON-able, empty while the rate never changed."""
        return {} if self == RateRamp() else asdict(self)


def ramp_from(position: Mapping[str, Any]) -> RateRamp:
    """The ramp of `position()`."""
    return RateRamp(**position)
