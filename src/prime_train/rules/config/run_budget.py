"""Duration and cost of a run, compared with its budget. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, if_known
from prime_train.rules.training.mem_fit import Unknown, hardware_of, shape_of
from prime_train.spec import ENDLESS_STEPS, RunSpec

if TYPE_CHECKING:
    from prime_train.estimate.values import Interval
    from prime_train.facts.facts import Facts, RunFolder

_ENOUGH_STEPS = 10  # timed steps that a previous run needs, because the first ones compile and fill caches


class StepTime(NamedTuple):
    """Seconds of one step, and how that is known."""

    seconds: Interval
    known_from: str


@facts_rule("RUN005", Severity.WARNING, needs=("gpus",), uses=("run_folder",))
def longer_than_its_hours(run: RunSpec, facts: Facts) -> Problems:
    """A run should end within its budget of hours.

    the run is stopped before its last step, or takes longer than planned

    The step time is that of a previous run in the same directory; without one, it is estimated as by
    `prime-train estimate`. If only the upper end of the estimate exceeds the budget, the finding is a note.

    Source: estimate/time/throughput.py; metrics.jsonl of the run.

    Bad:
        [prime_train]
        budget_hours = 1.0
        [facts.run_folder]
        step_s = 9.0
        timed_steps = 200
    Bad (prime-rl 2026-08):
        [prime_train]
        budget_hours = 1.0
        [facts.run_folder]
        step_s = 60.0
        timed_steps = 50
    Good:
        [prime_train]
        budget_hours = 3.0
        [facts.run_folder]
        step_s = 9.0
        timed_steps = 200
    """
    budget, at = run.prime_train.budget_hours, "prime_train.budget_hours"
    if budget is None:
        return
    step = step_of(run, facts)
    if isinstance(step, Unknown):
        yield _not_judged(at, f"{budget:g} h", step)
        return
    steps, seconds = run.run.max_steps, step.seconds
    hours = seconds.times(steps / 3600)
    worth = int(budget * 3600 / seconds.typical)
    if hours.high > budget:
        yield Problem(
            at,
            f"{steps} steps take {_span(hours, 'h')}, {step.known_from}; the budget is {budget:g} h",
            fix=f"`run.max_steps` = {worth}, or more hours" if worth else "more hours, or a faster machine",
            severity=None if hours.typical > budget else Severity.NOTE,
        )


@facts_rule("RUN006", Severity.WARNING, needs=("gpus",), uses=("run_folder",))
def dearer_than_its_budget(run: RunSpec, facts: Facts) -> Problems:
    """A run should cost no more than its budget.

    the budget is spent before the last step

    The price is the on-demand price of the machine's GPU in registry/offers.toml, interruptions included. If only the
    upper end exceeds the budget, the finding is a note.

    Source: estimate/cost/run_cost.py; registry/offers.toml, each row with its source and date.

    Bad (prime-rl 2026-08):
        [prime_train]
        budget_usd = 5.0
        [facts.run_folder]
        step_s = 600.0
        timed_steps = 50
    Good (prime-rl 2026-08):
        [prime_train]
        budget_usd = 5000.0
        [facts.run_folder]
        step_s = 60.0
        timed_steps = 50
    """
    from prime_train.estimate.cost.run_cost import PricedWork, cost_of, shipped_rates
    from prime_train.prices.store import shipped_prices

    budget, at = run.prime_train.budget_usd, "prime_train.budget_usd"
    if budget is None:
        return
    step, hardware = step_of(run, facts), hardware_of(run, facts)
    if isinstance(step, Unknown):
        yield _not_judged(at, f"{budget:g} USD", step)
        return
    if isinstance(hardware, Unknown):
        yield _not_judged(at, f"{budget:g} USD", hardware)
        return
    work = PricedWork(hardware.id, hardware.gpus, run.run.max_steps, step.seconds, run.checkpoint.interval_steps)
    cost = cost_of(work, shipped_prices(), shipped_rates(), spot=False)
    if cost is None:
        yield _not_judged(at, f"{budget:g} USD", Unknown(f"registry/offers.toml has no price of {hardware.id}"))
    elif cost.usd.high > budget:
        usd = _span(cost.usd, "USD")
        yield Problem(
            at,
            f"{hardware.gpus} x {hardware.id} cost {usd}, {step.known_from}; the budget is {budget:g}",
            fix="fewer `run.max_steps`, a cheaper machine (prime-train find), or more money",
            severity=None if cost.usd.typical > budget else Severity.NOTE,
        )


def _not_judged(at: str, budget: str, unknown: Unknown) -> Problem:
    return Problem(
        at,
        f"whether {budget} are enough is not known: {unknown.reason}",
        fix="prime-train estimate, with --gpus and --model-config",
        why="a budget that cannot be checked has no effect",
        severity=Severity.NOTE,
    )


def step_of(run: RunSpec, facts: Facts) -> StepTime | Unknown:
    """The time of a step, measured in the run directory or estimated."""
    from prime_train.estimate.values import Interval

    if run.run.max_steps >= ENDLESS_STEPS:
        return Unknown("the run has no end: `run.max_steps` is not set")
    folder: RunFolder | None = if_known(facts, "run_folder")
    if folder is not None and folder.step_s is not None and folder.timed_steps >= _ENOUGH_STEPS:
        seconds = Interval(folder.step_s, folder.step_s, folder.step_s)
        return StepTime(seconds, f"at {folder.step_s:.3g} s a step as in {folder.path}")
    return _estimated(run, facts)


def _estimated(run: RunSpec, facts: Facts) -> StepTime | Unknown:
    from prime_train.estimate.estimate import estimate

    hardware, shape = hardware_of(run, facts), shape_of(run)
    if isinstance(hardware, Unknown):
        return hardware
    if isinstance(shape, Unknown):
        return shape
    try:
        time = estimate(run, hardware, shape).time
    except UserError as error:
        return Unknown(error.what)
    if time is None:
        return Unknown("nothing is trained")
    return StepTime(time.step_s, f"by the estimate on {hardware.gpus} x {hardware.id}")


def _span(values: Interval, unit: str) -> str:
    """The range in three digits, as "2.5 h" or "2.5 to 4.1 h"."""
    low, high = f"{values.low:.3g}", f"{values.high:.3g}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"
