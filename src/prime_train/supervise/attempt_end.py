"""Collects the evidence of an ended attempt, builds the event of its end, and has the causes that no log holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.redaction import redact
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded
from prime_train.supervise.diagnose import Cause, Evidence, is_disk_full, read_tail
from prime_train.supervise.evidence import read_stuck_place
from prime_train.supervise.log_follower import LogReader
from prime_train.supervise.policy import Policy
from prime_train.supervise.process import Exited
from prime_train.supervise.resume_choice import choose_checkpoint
from prime_train.supervise.state import Live, State


def collect_evidence(
    state: State, live: Live, policy: Policy, run_dir: RunDir, exited: Exited | None = None
) -> Evidence:
    """The evidence of an attempt whose processes have ended. `exited`: the exit that ended it; None if none came."""
    role = exited.role if exited is not None else _first_role(live)
    log = _log_of(live, run_dir, role)
    return Evidence(
        returncode=exited.returncode if exited is not None else None,
        log=log,
        log_tail=read_tail(log),
        oom_kills=0,
        role=role,
        stuck_place=read_stuck_place(run_dir.evidence(live.number)),
        disk_full=is_disk_full(run_dir.path),
        stopped_by_us=_was_stopped_by_us(state, live, policy),
    )


def _was_stopped_by_us(state: State, live: Live, policy: Policy) -> bool:
    """A stop was requested before anything failed, and nothing could be saved."""
    if state.stop_requested_s is None or live.pending_kill is not None:
        return False
    return not (policy.stops_by_file and state.stop_saves and live.all_started)


def collect_orphan_evidence(live: Live, run_dir: RunDir) -> Evidence:
    """The evidence of an attempt whose supervisor died. Its logs were not followed, so they are read now."""
    log = _log_of(live, run_dir, _first_role(live))
    return Evidence(None, log, read_tail(log), 0, LogReader([Path(child.log) for child in live.children]).cause())


def build_end_event(
    state: State, returncode: int | None, cause: Cause, newest_first: Sequence[Checkpoint], hidden: Sequence[str]
) -> AttemptEnded:
    """The AttemptEnded event, with secrets masked."""
    newest, _ = choose_checkpoint(newest_first, state.unreadable)
    what, why, fix, where = (redact(text, hidden) for text in (cause.what, cause.why, cause.fix, cause.where))
    return AttemptEnded(
        *(state.attempt_number, returncode, cause.outcome, cause.cause_class, what, why, fix, where),
        newest_complete=newest,
        cause_id=cause.id,
        retry=cause.retry,
    )


def _first_role(live: Live) -> str:
    return live.children[0].role if live.children else "trainer"


def _log_of(live: Live, run_dir: RunDir, role: str) -> Path:
    named = next((Path(child.log) for child in live.children if child.role == role), None)
    return named if named is not None else run_dir.log(live.number, role)
