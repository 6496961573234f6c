"""What a recommendation consists of, and the figures that recommendations are computed from. Values only."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.profile.diagnosis import Class
from prime_train.profile.engine_speed import EngineSpeed
from prime_train.profile.measurement import Measurement
from prime_train.profile.setup import Setup

LEAST_GAIN = 1.03  # a smaller one is below the noise of a few steps


class Recommendation(NamedTuple):
    """A change. `gain` = tokens or rollouts per second afterwards over those before; None if it cannot be computed."""

    kind: Class
    text: str
    setting: str  # an assignment of run.toml; "" if there is none
    gain: float | None


class Probe(NamedTuple):
    """Forward and backward of one micro-batch that is `times` as large as the run's, beside the run."""

    times: int
    seconds: float


class Evidence(NamedTuple):
    """Everything that recommendations are computed from."""

    measured: Measurement
    setup: Setup
    probes: tuple[Probe, ...] = ()
    engine: EngineSpeed | None = None

    @property
    def step_s(self) -> float:
        return self.measured.wall_s / self.measured.steps

    def per_step_s(self, *components: str) -> float:
        return self.measured.critical_s(*components) / self.measured.steps

    def gain(self, saved_s: float, kept_trainer_s: float | None = None) -> float:
        """The gain of a step that is shorter by `saved_s`, and not shorter than the trainer's own work."""
        least_s = self.measured.trainer_s / self.measured.steps if kept_trainer_s is None else kept_trainer_s
        return self.step_s / max(self.step_s - saved_s, least_s, 1e-9)
