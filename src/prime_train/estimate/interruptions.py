"""Estimates what interruptions cost a run: their number, the lost work, and the total time. Pure.

Model: interruptions come at random at a constant rate, work since the last checkpoint is lost, and a restart may itself
be interrupted. Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
Generation Computer Systems 22 (2006), 303-312.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from prime_train import gpu_registry
from prime_train.estimate.values import Interval

_HOUR_S = 3600.0
_NEVER_PER_HOUR = 1e-12  # once in a hundred million years
_HOPELESS = math.log(1000)  # one attempt in a thousand reaches the next checkpoint: the run counts as endless


class Rates(NamedTuple):
    """Interruption rates. `spot`: per offer and hour; `on_demand`: per GPU and hour; `restart_s`: billed seconds."""

    spot: Interval
    on_demand: Interval
    restart_s: Interval
    sources: tuple[str, ...] = ()

    def per_hour(self, gpus: int, *, spot: bool) -> Interval:
        """Interruptions of the run per hour. Spot machines of one zone stop together, so their number is ignored."""
        return self.spot if spot else self.on_demand.times(gpus)


class Run(NamedTuple):
    """The run without interruptions. `checkpoint_s`: seconds of work between checkpoints (None: only at the end).

    `save_s`: seconds that a checkpoint stops the training, near zero if it is written in the background.
    """

    solve_s: float
    checkpoint_s: float | None
    save_s: float = 0.0


class InterruptedRun(NamedTuple):
    """The expected run: total seconds, interruptions, and seconds of repeated work and restarts.

    All three are infinite if fewer than one attempt in a thousand reaches the next checkpoint.
    """

    run_s: float
    interruptions: float
    lost_s: float


@cache
def shipped_rates() -> Rates:
    """The rates of registry/interruptions.toml."""
    import tomli

    document = tomli.loads(gpu_registry.data_file("interruptions.toml").read_text(encoding="utf-8"))

    def interval(name: str) -> Interval:
        return Interval(*(float(document[name][end]) for end in ("low", "typical", "high")))

    sources = tuple(f"{name}: {document[name]['source']}" for name in ("spot", "on_demand", "restart_s"))
    return Rates(interval("spot"), interval("on_demand"), interval("restart_s"), sources)


def expect_interruptions(run: Run, per_hour: float, restart_s: float) -> InterruptedRun:
    """Daly's complete cost function: M e^(R/M) (e^((tau + delta)/M) - 1) T/tau, with M = 1 / rate.

    tau is the work between checkpoints, delta the save, R the restart, T the run without interruptions.
    """
    stretch_s = min(run.checkpoint_s or run.solve_s, run.solve_s)
    saves_s = run.save_s * (run.solve_s / stretch_s) if stretch_s > 0 else 0.0
    if per_hour < _NEVER_PER_HOUR or stretch_s <= 0:
        return InterruptedRun(run.solve_s + saves_s, 0.0, 0.0)
    between_s = _HOUR_S / per_hour
    if (stretch_s + run.save_s + restart_s) / between_s > _HOPELESS:
        return InterruptedRun(math.inf, math.inf, math.inf)
    attempts = math.exp(restart_s / between_s) * math.expm1((stretch_s + run.save_s) / between_s)
    # Rounding errors must not make a run with rare interruptions shorter.
    run_s = max(between_s * attempts * run.solve_s / stretch_s, run.solve_s + saves_s)
    return InterruptedRun(run_s, run_s / between_s, max(0.0, run_s - run.solve_s - saves_s))
