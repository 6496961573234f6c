"""What the events of a run add to the diagnosis of its logs: how each attempt ended, and why. Reads only.

The log of a killed process does not hold its cause, and a trainer reports its own failure as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from prime_train.core.rundir import RunDir
from prime_train.diagnose.cause import UNKNOWN, Cause, Diagnosis
from prime_train.events import AttemptEnded, LaunchAsked, read
from prime_train.views.run.runs import find

REPORTED = "REPORTED"  # the id of a cause that the run reports and no signature names
_NOT_KNOWN = ("", "unknown")


class AttemptHistory(NamedTuple):
    """The attempts of a run that have ended, in order. `is_going`: a newer one was started."""

    ended: tuple[AttemptEnded, ...] = ()
    is_going: bool = False

    @property
    def newest(self) -> AttemptEnded | None:
        """The end of the newest attempt; None while it lasts."""
        return None if self.is_going or not self.ended else self.ended[-1]

    @property
    def failed_before(self) -> tuple[AttemptEnded, ...]:
        """The failed attempts before the newest one."""
        earlier = self.ended if self.is_going else self.ended[:-1]
        return tuple(ended for ended in earlier if ended.outcome == "failed")


def read_history(names: Sequence[str]) -> AttemptHistory:
    """The history of the run that is the only name; an empty one for logs. Raises UserError for an unknown run."""
    if len(names) != 1 or names[0] == "-":
        return AttemptHistory()
    path = Path(names[0])
    if not path.exists() and "/" not in names[0] and "." not in names[0]:
        path = find(names[0], Path.cwd()).path
    return history_of(RunDir(path)) if path.is_dir() else AttemptHistory()


def history_of(run_dir: RunDir) -> AttemptHistory:
    """The history of a run by its events."""
    ended: dict[int, AttemptEnded] = {}
    asked = 0
    for record in read(run_dir.events):
        match record.event:
            case LaunchAsked(attempt=attempt):
                asked = attempt
            case AttemptEnded(attempt=attempt) as event:
                ended[attempt] = event
    return AttemptHistory(tuple(ended[number] for number in sorted(ended)), asked not in ended and asked > 0)


def add_history(diagnosis: Diagnosis, history: AttemptHistory) -> Diagnosis:
    """The diagnosis with what the run reports: a good end forgives, and a reported cause is more than a guess."""
    newest = history.newest
    if newest is None:
        return diagnosis
    if newest.outcome == "finished":
        return diagnosis._replace(cause=None, cascade=(), unordered=(), ends=())
    if newest.outcome != "failed":
        return diagnosis._replace(ends=())
    found = diagnosis.cause
    if found is not None and found.id == UNKNOWN and newest.cause_class not in _NOT_KNOWN:
        return diagnosis._replace(cause=_reported(newest, found))
    return diagnosis


def _reported(ended: AttemptEnded, found: Cause) -> Cause:
    """The cause that the run reports, at the line of its log that no signature knows."""
    return found._replace(
        id=ended.cause_id or REPORTED,
        cause_class=ended.cause_class,
        retry=ended.retry or found.retry,
        what=ended.what,
        why=ended.why or found.why,
        fix=ended.fix or found.fix,
    )
