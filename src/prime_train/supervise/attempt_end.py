"""Closes the account of an attempt: gathers what is left of it, and words its end as an event. Ends no process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.rundir import RunDir
from prime_train.diagnose import cause as root_cause
from prime_train.events import AttemptEnded
from prime_train.supervise.diagnose import Cause, Evidence, disk_full, tail
from prime_train.supervise.evidence import where_stood
from prime_train.supervise.launch import environment
from prime_train.supervise.log_follower import Listener
from prime_train.supervise.policy import Policy
from prime_train.supervise.process import Exited
from prime_train.supervise.resume_choice import choice
from prime_train.supervise.state import Live, State


def evidence(
    state: State, live: Live, policy: Policy, run_dir: RunDir, exited: Exited | None, heard: root_cause.Cause | None
) -> Evidence:
    """What an attempt leaves whose processes are gone. `exited`: the exit that ended it; None where none came."""
    role = exited.role if exited is not None else _first_role(live)
    log = _log_of(live, run_dir, role)
    return Evidence(
        returncode=exited.returncode if exited is not None else None,
        log=log,
        log_tail=tail(log),
        oom_kills=0,
        heard=heard,
        role=role,
        stood=where_stood(run_dir.evidence(live.number)),
        disk_full=disk_full(run_dir.path),
        told_to_end=_was_told_to_end(state, live, policy),
    )


def _was_told_to_end(state: State, live: Live, policy: Policy) -> bool:
    """It was asked to stop before anything was wrong, and had nothing to save, or no way to."""
    if state.stop_asked_s is None or live.doom is not None:
        return False
    return not (policy.stops_by_file and state.stop_saves and live.all_started)


def of_the_dead(live: Live, run_dir: RunDir) -> Evidence:
    """What an attempt leaves whose supervisor died: nobody heard it, so its logs are read now."""
    log = _log_of(live, run_dir, _first_role(live))
    return Evidence(None, log, tail(log), 0, Listener([Path(child.log) for child in live.children]).cause())


def ended(
    number: int,
    returncode: int | None,
    cause: Cause,
    newest_first: Sequence[Checkpoint],
    unreadable: Collection[int],
    hidden: Sequence[str],
) -> AttemptEnded:
    """The event of an end, without secrets in its words."""
    newest, _ = choice(newest_first, unreadable)
    what, why, fix, where = (
        environment.redact(words, hidden) for words in (cause.what, cause.why, cause.fix, cause.where)
    )
    return AttemptEnded(
        number,
        returncode,
        cause.outcome,
        cause.cause_class,
        what,
        why,
        fix,
        where,
        newest_complete=newest,
        cause_id=cause.id,
        retry=cause.retry,
    )


def _first_role(live: Live) -> str:
    return live.children[0].role if live.children else "trainer"


def _log_of(live: Live, run_dir: RunDir, role: str) -> Path:
    named = next((Path(child.log) for child in live.children if child.role == role), None)
    return named if named is not None else run_dir.log(live.number, role)
