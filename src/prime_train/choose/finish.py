"""Chooses what follows from the time of a step: steps within the budget, when to save, how much to keep. Pure."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from prime_train.choose.draft import Choice
from prime_train.choose.wishes import Budget, GpuPlace, Wishes
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import format_bytes, format_seconds
from prime_train.estimate.candidate_changes import has_adapter
from prime_train.estimate.cost.run_cost import PricedWork, cost_of
from prime_train.estimate.spot.advice import SAVED_BYTES, Saves, assume_saves, recommend
from prime_train.estimate.time.run_time import Time
from prime_train.estimate.values import find_largest
from prime_train.prices.price import Price
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, saves_in_background

_TOKENS_PER_PARAMETER = 20  # Hoffmann et al., arXiv 2203.15556, table 3
_EPOCHS = 3
_USUAL_STEPS = {"pretrain": 10_000, "sft": 1000, "rl": 200}
_MOST_WARMUP = {"rl": 10, "text": 2000}  # steps
_LEAST_STEPS = 20  # fewer are a test of the machine, and no training
_MOST_KEPT = 3
_DISK_SHARE = 0.85  # prime_train.cleanup.max_used_ratio
_LORA_SHARE = 0.01  # of the parameters that an adapter has at rank 16, rounded up


def choose_end(wishes: Wishes, run: RunSpec, time: Time, gpus: int, prices: tuple[Price, ...]) -> dict[str, Choice]:
    """Steps, warm-up, intervals and checkpoints. Raises UserError if the budget is too small for a training."""
    steps = _choose_steps(wishes, run, time, gpus, prices)
    run = dataclasses.replace(run, run=dataclasses.replace(run.run, max_steps=steps.value))
    saves = _choose_saves(wishes, run, time)
    keep = "saving.keep_last" if run.prime_rl is not None else "checkpoint.keep_last"
    choices = {"run.max_steps": steps, "checkpoint.interval_steps": saves, keep: _choose_kept(wishes)}
    if run.prime_rl is None:
        most = _MOST_WARMUP["rl" if wishes.task == "rl" else "text"]
        # At least one step follows the warm-up, because the rate would not reach its peak otherwise.
        warmup = min(most, max(1, steps.value // 30), steps.value - 1)
        choices["schedule.warmup_steps"] = Choice(warmup, "")
        choices["eval.interval_steps"] = Choice(saves.value, "with each checkpoint")
    return choices


def _choose_steps(wishes: Wishes, run: RunSpec, time: Time, gpus: int, prices: tuple[Price, ...]) -> Choice:
    wanted = _wanted_steps(wishes, run)
    limits = Limits(wishes.place, wishes.budget, time, gpus, run.checkpoint.interval_steps, prices)
    most = find_largest(0, wanted.value, limits.holds)
    if most >= wanted.value:
        return wanted
    if wishes.steps is not None or most < _LEAST_STEPS:
        raise limits.refuse(wanted.value, most)
    return Choice(most, f"what {limits.words} allows by the upper bound; {wanted.value:,} without it: {wanted.why}")


def _wanted_steps(wishes: Wishes, run: RunSpec) -> Choice:
    """The steps without a budget."""
    if wishes.steps is not None:
        return Choice(wishes.steps, "as asked for")
    if wishes.task == "pretrain":
        tokens = _TOKENS_PER_PARAMETER * wishes.shape.parameters
        steps = max(1, math.ceil(tokens / (global_batch(run) * run.data.ctx_tokens)))
        return Choice(steps, f"{tokens / 1e9:.3g} B tokens, 20 per parameter (arXiv 2203.15556)")
    rows = wishes.data.rows if wishes.data is not None else None
    if wishes.task == "sft" and rows is not None and run.prime_rl is None:  # which packs records into fewer rows
        steps = max(1, math.ceil(_EPOCHS * rows / global_batch(run)))
        return Choice(steps, f"{_EPOCHS} epochs of {rows:,} records")
    return Choice(_USUAL_STEPS[wishes.task], "usual; the reward or the loss shows when more are useless")


class Limits(NamedTuple):
    """The budget, and what decides how many steps it holds."""

    place: GpuPlace
    budget: Budget
    time: Time
    gpus: int
    checkpoint_steps: int | None
    prices: tuple[Price, ...]

    @property
    def words(self) -> str:
        usd, hours = self.budget
        parts = ("" if usd is None else f"{usd:g} USD", "" if hours is None else f"{hours:g} hours")
        return "a budget of " + " and ".join(filter(None, parts))

    def holds(self, steps: int) -> bool:
        """Whether so many steps stay within the budget by the upper bound of the estimate."""
        hours, usd = self.bounds(steps)
        return (self.budget.hours is None or hours <= self.budget.hours) and (
            self.budget.usd is None or (usd is not None and usd <= self.budget.usd)
        )

    def bounds(self, steps: int) -> tuple[float, float | None]:
        """Hours without interruptions and USD with them, at most; None if there is no price of the GPU."""
        work = PricedWork(self.place.hardware.id, self.gpus, steps, self.time.step_s, self.checkpoint_steps)
        cost = cost_of(work, self.prices, self.place.rates, spot=self.place.is_spot) if steps else None
        usd = 0.0 if not steps else None if cost is None else cost.usd.high
        return steps * self.time.step_s.high / 3600, usd

    def refuse(self, wanted: int, most: int) -> UserError:
        """The error for a budget that is too small, or that cannot be compared with any price."""
        hours, usd = self.bounds(wanted)
        if usd is None and self.budget.usd is not None:
            return UserError(
                what=f"no {'spot ' if self.place.is_spot else ''}price of {self.place.hardware.id} is known",
                where=f"--budget-usd {self.budget.usd:g}",
                why="steps are chosen by what they cost",
                fix="--budget-hours, or prices: prime-train prices refresh",
                exit_code=ExitCode.FINDINGS,
            )
        cost = f"{hours:.3g} hours" + ("" if usd is None else f" and {usd:.3g} USD")
        few = f"{most} steps, and fewer than {_LEAST_STEPS} are no training"
        return UserError(
            what=f"{wanted:,} steps take up to {cost}",
            where=self.words,
            why=f"the budget holds {most:,} steps" if most >= _LEAST_STEPS else f"the budget holds {few}",
            fix=f"--steps {most}" if most >= _LEAST_STEPS else "a smaller model, shorter sequences or a larger budget",
            exit_code=ExitCode.FINDINGS,
        )


def _choose_saves(wishes: Wishes, run: RunSpec, time: Time) -> Choice:
    """The interval that loses least (estimate/spot/advice.py); the run has at least four."""
    per_hour, step_s, steps = wishes.place.interruptions, time.step_s.typical, run.run.max_steps
    saves, known_from = _expect_saves(wishes, run)
    best = recommend(saves, per_hour, step_s, steps).interval_steps
    interval = max(1, min(best, steps // 4))
    why = f"a crash loses at most {format_seconds(interval * step_s)}; "
    if interval != best:
        return Choice(interval, f"{why}a quarter of the run, because interruptions are rare")
    machines = "on spot machines" if wishes.place.is_spot else "on demand"
    rate = f"{per_hour:.2g} interruptions an hour" + (
        f" {machines}" if wishes.place.interruptions_per_hour is None else ""
    )
    return Choice(interval, f"{why}least loss at {rate} with saves of {format_seconds(saves.write_s)}, {known_from}")


def _expect_saves(wishes: Wishes, run: RunSpec) -> tuple[Saves, str]:
    """The time of a save, and where it is from: the latest run here that saved in this way, in proportion to size."""
    size_bytes, in_background = SAVED_BYTES * _trained(wishes, run), saves_in_background(run)
    earlier = next((one for one in wishes.place.saves if one.in_background is in_background), None)
    if earlier is None:
        why = f"estimated from {format_bytes(size_bytes)} and the speed of another disk; the first saves show theirs"
        return assume_saves(run, _trained(wishes, run)), why
    part = size_bytes / earlier.size_bytes
    why = f"measured on run {earlier.run}, whose {format_bytes(earlier.size_bytes)} took {earlier.write_s:.2g} s"
    return Saves(part * earlier.stall_s, part * max(earlier.stall_s, earlier.write_s)), why


def _trained(wishes: Wishes, run: RunSpec) -> int:
    return round(_LORA_SHARE * wishes.shape.parameters) if has_adapter(run) else wishes.shape.parameters


def _choose_kept(wishes: Wishes) -> Choice:
    """Checkpoints to keep beside the one that is written, by the disk that is free."""
    each, free = SAVED_BYTES * wishes.shape.parameters, wishes.place.free_disk_bytes
    size = f"{format_bytes(each)} each at most"
    if free is None:
        return Choice(2, f"{size}; the disk of that machine is not known")
    kept = min(_MOST_KEPT, max(1, int(_DISK_SHARE * free / each) - 1))
    return Choice(kept, f"{size}, and {format_bytes(free)} of disk are free here")
