"""Puts changes of settings in force at the same step on every rank. No collective of its own, no clock.

Each step adds up how many ranks have the next plan. Every rank reads the same sum, so all of them see at the same step
that all have it, and put it in force at the same later step. Before a rank can reach that step, rank 0 has reported it:
the step comes after one more sum, to which rank 0 adds only when its report is written. A checkpoint holds what is in
force. What was reported after it is scheduled for the same steps, so a run that was killed at any moment does the same
again.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MARK_BYTES
from prime_train.core.plans import MOST_VERSIONS, ChangePlan, parse_plan, plan_path, read_plan, write_plan
from prime_train.events import SettingsApplied
from prime_train.spec import RunSpec
from prime_train.spec.live_values import describe_values, overlay, with_values
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.parallel import World

# Another folder of plans, with one for each rank. Only tests set it: a plan may be late on its way to one rank.
FOLDER_ENV = "PRIME_TRAIN_SETTINGS"


class PlannedStep(NamedTuple):
    """A plan, and the first step with its values."""

    step: int
    plan: ChangePlan


@dataclass(slots=True)
class LiveSettings:
    """The settings in force. `attempt.run` has them; resolved.json stays as it is."""

    attempt: Attempt
    ranks: int
    behind_steps: int  # steps that are launched before the sum of one is read
    folder: Path
    _config: RunSpec
    waits_for_report: bool = True  # False where all ranks meet between the report of a change and the next step
    position: list[dict[str, Any]] = field(default_factory=list)  # what is in force, for a checkpoint: JSON-able
    _in_force: tuple[PlannedStep, ...] = ()
    _planned: deque[PlannedStep] = field(default_factory=deque)  # agreed, and their steps are still to come
    _next: ChangePlan | None = None  # what this rank has and not all ranks are known to have
    _refused: int = 0  # a version whose file is no plan
    _unread: int = 0  # a version whose file could not be read at the last look
    _has_changed: bool = False
    _reported: int = 0  # the newest version that this attempt has reported
    _next_path: str = ""  # of the plan that comes next: made once, because each step looks for it

    def __post_init__(self) -> None:
        self._next_path = str(plan_path(self.folder, self.version + 1))

    @property
    def version(self) -> int:
        """The newest version in force; 0 = the config alone."""
        return self._in_force[-1].plan.version if self._in_force else 0

    def has_changed(self, step: int) -> bool:
        """Put in force what begins with `step`; returns whether `attempt.run` is another one than at the last call."""
        changed, self._has_changed = self._has_changed, False
        while self._planned and self._planned[0].step <= step:
            one = self._planned.popleft()
            self._put_in_force((*self._in_force, one))
            self._report(one)  # one of an earlier attempt: this one has not reported it
            changed = True
        return changed

    def has_next(self) -> bool:
        """Whether this rank has the next plan, for the sum of this step. Looks at one name: about 2 us."""
        # One version after the other, so that the sum of a step is about one version on every rank.
        if self._planned:
            return False
        if self._next is None and os.path.exists(self._next_path):  # noqa: PTH110 - pathlib takes three times as long
            self._next = self._read(self.version + 1)
        return self._next is not None

    def hear(self, step: int, ready_ranks: int) -> None:
        """Take the sum of a step that was read: how many ranks had the next plan when they launched it."""
        begins = self._in_force[-1].step if self._in_force else 0
        # The sums of steps that were launched before the version in force began are about that version.
        if ready_ranks != self.ranks or step < begins or self._planned or self._next is None:
            return
        first = self.find_first(step)
        if first <= self.attempt.run.run.max_steps:  # else the run ends before it
            self._planned.append(PlannedStep(first, self._next))
            self._next = None
            # Before this rank adds to another sum: if rank 0 is killed later, its report is written, and if it is
            # killed earlier, no rank gets beyond that sum. So there is no update that no event explains.
            self._report(self._planned[-1])

    def find_first(self, step: int) -> int:
        """The first step with a plan that all ranks had in the sum of `step`."""
        first = step + 1 + self.behind_steps  # the steps before it are launched when that sum is read
        # Rank 0 adds to the sum of that step after its report. That sum is read after as many steps again.
        return first + 1 + self.behind_steps if self.waits_for_report else first

    def resume(self, saved: Iterable[dict[str, Any]], planned: Iterable[PlannedStep]) -> None:
        """Put in force what a checkpoint holds, and schedule what a dead attempt had put in force after it."""
        found = _parse_steps(saved)
        if found:
            self._put_in_force(found)
            self._report(found[-1])
            self._has_changed = True
            self._restore_files(found)
        self._planned.extend(one for one in planned if one.plan.version > self.version)

    def report_agreed(self) -> None:
        """Report what is planned: a replica that took it over from another one may be the one that reports now."""
        for one in self._planned:
            self._report(one)

    def agreed_position(self) -> list[dict[str, Any]]:
        """What all ranks have agreed on for steps to come, for a replica that joins them: JSON-able."""
        return [_describe_step(one) for one in self._planned]

    def _put_in_force(self, plans: tuple[PlannedStep, ...]) -> None:
        self._in_force = plans
        self._next_path = str(plan_path(self.folder, self.version + 1))
        self.position = [_describe_step(one) for one in plans]
        self.attempt = replace(self.attempt, run=overlay(self._config, (one.plan for one in plans)))

    def _restore_files(self, plans: Iterable[PlannedStep]) -> None:
        """Write the plans that a checkpoint brought to this machine: the next version follows the newest file."""
        for one in plans if self.attempt.rank == 0 else ():
            with suppress(OSError):  # most are there; without them the run goes on
                write_plan(self.folder, one.plan)

    def _report(self, one: PlannedStep) -> None:
        if one.plan.version <= self._reported:
            return
        if self.attempt.leads:  # another replica may lead later, and then this one reports
            self._reported = one.plan.version
        present = overlay(self._config, (*(each.plan for each in self._in_force), one.plan))
        last = max(present.run.max_steps, one.step)
        texts = describe_values(one.plan.values)
        self.attempt.emit(SettingsApplied(self.attempt.number, one.plan.version, one.step, texts, last))

    def _read(self, version: int) -> ChangePlan | None:
        """The plan of a version; None, and a line in the log, for a file that is none: then no rank applies it."""
        if version == self._refused:
            return None
        try:
            plan = read_plan(self.folder, version)
            data = with_values(self._config, plan.values).data
            if not set(data.transforms) <= set(data.allowed_transforms):
                raise ValueError("data.transforms names code that the config does not allow")
        except OSError as error:  # a full table of files, or a file server that restarts: the next step looks again
            if version != self._unread:
                self._unread = version
                sys.stderr.write(f"{plan_path(self.folder, version)} is not read yet: {error}\n")
            return None
        except (ValueError, AttributeError) as error:
            self._refused = version
            sys.stderr.write(f"{plan_path(self.folder, version)} is not applied: {error}\n")
            return None
        return plan


def open_settings(
    attempt: Attempt,
    world: World,
    saved: list[dict[str, Any]],
    behind_steps: int,
    agreed: list[dict[str, Any]] | None = None,
) -> LiveSettings:
    """The settings in force at the first step of an attempt. Called by every rank. Raises UserError.

    `saved`: the position in the checkpoint. `agreed`: what `agreed_position` returned in another replica at that step.
    """
    named = os.environ.get(FOLDER_ENV)
    folder = Path(named) / f"rank{world.rank}" if named else attempt.run_dir.settings
    live = LiveSettings(attempt, world.size, behind_steps, folder, attempt.run)
    if agreed is not None:
        live.resume(saved, _parse_steps(agreed))
        live.report_agreed()
        return live
    # Rank 0 alone reads the schedule, so that no two ranks can have another one.
    planned = world.share(_read_planned(attempt) if attempt.rank == 0 else None)
    live.resume(saved, planned or ())
    return live


def _describe_step(one: PlannedStep) -> dict[str, Any]:
    return {"step": one.step, "plan": asdict(one.plan)}


def _parse_steps(steps: Iterable[dict[str, Any]]) -> tuple[PlannedStep, ...]:
    return tuple(PlannedStep(int(one["step"]), parse_plan(one["plan"], one["plan"]["version"])) for one in steps)


def _read_planned(attempt: Attempt) -> list[PlannedStep]:
    """What earlier attempts have put in force after the checkpoint of this one, as the supervisor wrote it down."""
    path, folder = attempt.run_dir.applied_settings(attempt.number), attempt.run_dir.settings
    try:
        steps = outside.read_json(path, MARK_BYTES, within=attempt.run_dir.path)["applied"]
        later = [(int(version), int(step)) for version, step in steps[:MOST_VERSIONS] if step > attempt.resume_step]
    except FileNotFoundError:  # nothing was changed
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    try:
        return [PlannedStep(step, read_plan(folder, version)) for version, step in sorted(later)]
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    what = f"a change of settings that an earlier attempt put in force cannot be read: {error}"
    why = "a resumed run makes the same changes at the same steps"
    return UserError(what, str(path), why, "put the file back, or go back to an earlier copy of the run directory")
