"""Watches the reported steps for an instability, and writes down what to do about it. Makes no change itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from prime_train import events
from prime_train.core.plans import read_plans
from prime_train.core.rundir import RunDir
from prime_train.events import Event, InstabilityFound
from prime_train.spec import RunSpec
from prime_train.spec.live_values import describe_values, find_in_force, read_rates, takes_plans
from prime_train.spec.supervision import Instability
from prime_train.supervise.core.fold_instability import is_made
from prime_train.supervise.core.instability import (
    STREAK_STEPS,
    WINDOW_STEPS,
    Excess,
    ReportedStep,
    find_instability,
)
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Program

# A plan is in force up to five steps after the checkpoint from which an attempt begins, and then it skips.
_AGREED_STEPS = 5


class InstabilityWatch:
    """The latest reported steps. A supervisor that takes over gets them by reading the events."""

    def __init__(self, run: RunSpec, run_dir: RunDir, program: Program) -> None:
        self._run, self._run_dir, self._program = run, run_dir, program
        self.settings = run.prime_train.instability  # they may change while the run trains
        self._steps: deque[ReportedStep] = deque(maxlen=WINDOW_STEPS + STREAK_STEPS)
        self._skipped: events.StepSkipped | None = None  # the latest, until a step changes the weights
        self._found: Excess | None = None

    def take(self, event: Event, *, judges: bool) -> None:
        """Take an event, in their order. `judges`: it is no past one."""
        match event:
            case events.LaunchAsked(resume_step=step):
                kept = [one for one in self._steps if one.step <= step]
                self._steps.clear()
                self._steps.extend(kept)
                self._skipped = self._found = None
            case events.StepSkipped() as skipped:
                self._skipped = skipped
            case events.TrainerFailed(what=what) if self._skipped is not None and judges:
                self._found, self._skipped = Excess(self._skipped.step, what, has_ended=True), None
            case events.Progress(step=step, loss=loss, grad_norm=norm) if not self._is_skipped(step):
                self._steps.append(ReportedStep(step, loss, norm))
                self._skipped = None
                if judges and self._found is None:
                    self._found = find_instability(tuple(self._steps))

    def _is_skipped(self, step: int) -> bool:
        return self._skipped is not None and self._skipped.step == step

    def turn(self, state: State) -> Iterator[InstabilityFound]:
        """What was found since the last call, unless it follows another one too closely."""
        found, self._found = self._found, None
        settings = self.settings
        if found is not None and settings.policy != "off" and not is_quiet(found, state, settings):
            yield self._propose(found, state, settings)

    def _propose(self, found: Excess, state: State, settings: Instability) -> InstabilityFound:
        skips = settings.action == "skip"
        values = self._skip_steps(found) if skips else self._lower_rate(settings.factor)
        goes_back = settings.action != "lower_rate" or not found.is_finite or found.has_ended
        before = _find_first(found) - _AGREED_STEPS + 1 if skips else found.step
        step, why = (self._find_checkpoint(before, state) if goes_back else 0), ""
        if not values:
            what = "step of this trainer can be left out" if skips else "learning rate of this run changes live"
            step, why = 0, f"no {what}, and the same steps would come again"
        elif goes_back and not step:
            values, why = {}, f"there is no complete checkpoint before step {before:,}"
        elif settings.policy == "auto" and state.policy_changes >= settings.limit:
            why = f"the policy has made its {settings.limit} changes"
        auto = settings.policy == "auto" and not why
        number = state.instability.number + 1 if state.instability is not None else 1
        about = (state.attempt_number, number, found.step, found.what)
        return InstabilityFound(*about, describe_values(values), step, auto, why)

    def _find_checkpoint(self, step: int, state: State) -> int:
        """The newest complete checkpoint before a step; 0 without one."""
        saved = self._program.checkpoints(self._run, self._run_dir)
        usable = (one.step for one in saved if one.complete and one.step not in state.unreadable and one.step < step)
        return max(usable, default=0)

    def _skip_steps(self, found: Excess) -> dict[str, Any]:
        """The steps that changed no weights so far, and those of this instability. Empty where none can be left out."""
        run, key = self._run, "optim.skip_steps"
        if run.command is not None or not takes_plans(run) or run.run.kind == "rl":
            return {}
        present = find_in_force(run, read_plans(self._run_dir.settings)).get(key, run.optim.skip_steps)
        last = found.last or found.step
        return {key: sorted({*present, *range(max(1, _find_first(found)), last + 1)})}

    def _lower_rate(self, factor: float) -> dict[str, Any]:
        """The rates that change live, times the factor. Empty where none does."""
        run, present = self._run, dict(read_rates(self._run))
        plans = read_plans(self._run_dir.settings)
        if run.command is not None:
            changed = {key: value for plan in plans for key, value in plan.values.items()}
        else:
            changed = find_in_force(run, plans)
        present |= {key: value for key, value in changed.items() if key in present and isinstance(value, int | float)}
        least = {one.name: one.min or 0 for one in run.command.settings} if run.command is not None else {}
        lower = {key: float(f"{value * factor:.6g}") for key, value in present.items()}
        return {key: value for key, value in lower.items() if value >= least.get(key, 0)}


def _find_first(found: Excess) -> int:
    """The first step that may have made it: a loss is that of the weights before its own step.

    A step between two that were reported may be the one.
    """
    return found.before or found.step - 1


def is_quiet(found: Excess, state: State, settings: Instability) -> bool:
    """Whether the answer to an earlier instability still counts for this one."""
    before = state.instability
    if before is None:
        return False
    if state.accepted_by and not is_made(state):  # the trainer goes on until it is asked to end
        return True
    if found.has_ended:
        return False
    if state.is_proposed:  # a person who looks at it finds one proposal, and it is still there when they accept it
        return True
    if not found.is_finite:  # each later step with the same weights is no number either
        return before.attempt == state.attempt_number
    return found.step <= (before.go_back_to or before.step) + settings.cool_down_steps
