"""The work of `ckpt prune`: what a run keeps, and what is deleted of the rest. Imported by the command alone."""

from __future__ import annotations

from pathlib import Path

from prime_train.checkpoints.cleanup import Keep
from prime_train.checkpoints.inventory import Places
from prime_train.events import CheckpointDeleted, EventLog, SpaceFreed
from prime_train.programs import recorded
from prime_train.rundir import RunDir
from prime_train.supervise.watches.disk_removal_program import Order, carry_out
from prime_train.views.pruning import Pruning
from prime_train.views.status import fold_events


def kept_by(run_dir: RunDir) -> tuple[Places, Keep]:
    """Where the run keeps what grows, and what its config keeps; the defaults where the run was never resolved."""
    program, run = recorded(run_dir)
    return program.places(run, run_dir), program.keep(run)


def delete(run_dir: RunDir, places: Places, plan: Pruning) -> dict[tuple[Path, ...], str]:
    """Do what is planned and tell it as events; what was not done, and why."""

    attempt = fold_events(run_dir).attempt_number
    failed = {}
    log = EventLog(run_dir.events, "ckpt")
    try:
        for one, problem in carry_out(Order(places, plan.keep, plan.deletions)):
            item = one.item
            if problem:
                failed[item.paths] = problem
            elif item.kind == "checkpoint":
                log.append(CheckpointDeleted(attempt, item.step, f"pruned: {one.reason}"))
            else:
                log.append(SpaceFreed(attempt, str(item.paths[0]), item.size_bytes, f"pruned: {one.reason}"))
    finally:
        log.close()
    return failed
