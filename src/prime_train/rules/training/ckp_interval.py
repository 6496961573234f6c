"""The interval of checkpoints on spot machines, compared with the one that loses least. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import format_seconds
from prime_train.rules.config.run_budget import step_of
from prime_train.rules.rule import Problems, facts_rule, if_known
from prime_train.rules.training.mem_fit import Unknown, shape_of
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.estimate.spot.advice import Saves
    from prime_train.facts.facts import Facts, RunFolder


@facts_rule("CKP009", Severity.WARNING, needs=("gpus",), uses=("run_folder",))
def interval_far_from_the_best(run: RunSpec, facts: Facts) -> Problems:
    """On spot machines, the interval of checkpoints should lose little time.

    each interruption repeats half an interval on average, and each save stops the training

    Judged if `prime_train.interruptions_per_day` is set, and an interval costs more than 5 % of the run's time. Step
    and save times are those of a previous run in the same directory; without one they are estimated.

    Source: Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006, eq. 37 and 20.

    Bad:
        [checkpoint]
        interval_steps = 1000
        [prime_train]
        interruptions_per_day = 6.0
        [facts.run_folder]
        step_s = 9.0
        timed_steps = 200
    Bad (prime-rl 2026-08):
        max_steps = 1000
        [ckpt]
        interval = 400
        [prime_train]
        interruptions_per_day = 6.0
        [facts.run_folder]
        step_s = 60.0
        timed_steps = 50
        save_s = [20.0, 90.0]
    Good:
        [checkpoint]
        interval_steps = 50
        [prime_train]
        interruptions_per_day = 6.0
        [facts.run_folder]
        step_s = 9.0
        timed_steps = 200
    """
    from prime_train.estimate.cost.run_cost import shipped_rates
    from prime_train.estimate.spot.advice import advise_saves, describe_excess

    per_day = run.prime_train.interruptions_per_day
    if per_day is None or run.checkpoint.interval_steps is None:
        return
    step = step_of(run, facts)
    measured: RunFolder | None = if_known(facts, "run_folder")
    saves = _find_saves(run, measured)
    if isinstance(step, Unknown) or saves is None:
        return
    restart_s = shipped_rates().restart_s.typical
    is_measured = measured is not None and measured.save_s is not None
    found = advise_saves(run, step.seconds.typical, per_day / 24, restart_s, saves, measured=is_measured)
    if not found.is_far or found.excess is None:
        return
    interval_s = run.checkpoint.interval_steps * step.seconds.typical
    yield Problem(
        "checkpoint.interval_steps",
        f"{run.checkpoint.interval_steps} steps are {format_seconds(interval_s)}, {step.known_from}; with {per_day:g} "
        f"interruptions a day they cost {describe_excess(found.excess)}",
        patch={"checkpoint.interval_steps": _round(found.advice.interval_steps, found.longest_steps)},
    )


def _find_saves(run: RunSpec, folder: RunFolder | None) -> Saves | None:
    """Save times of the previous run, else those assumed for the size of the model; None if it is not known."""
    from prime_train.estimate.spot.advice import Saves, assume_saves

    if folder is not None and folder.save_s is not None:
        return Saves(*folder.save_s)
    shape = shape_of(run)
    return None if isinstance(shape, Unknown) else assume_saves(run, shape.parameters)


def _round(best: int, longest: int) -> int:
    """A number with one digit between both: the longest one, because saves also cost disk and traffic."""
    scale = int("1" + "0" * (len(str(longest)) - 1))
    return max(best, longest // scale * scale)
