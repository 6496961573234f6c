"""What `run` does about backups: the user's defaults, and the newest checkpoint from the bucket or into it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from prime_train.cli.terminal.standard_streams import write_note
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.programs import program_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import may_save
from prime_train.supervise.launch.run_directory import Resume

if TYPE_CHECKING:
    from prime_train.backups.inventory import StoredBackup
    from prime_train.backups.store import Store
    from prime_train.checkpoints.step_folders import StepPlaces
    from prime_train.supervise.core.state import State

Progress = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]


def with_defaults(run: RunSpec) -> RunSpec:
    """The run with the user's defaults for `[prime_train.backup]`. Raises UserError for a backup that cannot work."""
    from prime_train.backups.settings import resolve

    if not may_save(run):
        return run
    found = resolve(run.prime_train.backup)
    if found is None or found == run.prime_train.backup:
        return run
    return replace(run, prime_train=replace(run.prime_train, backup=found))


def restore(run: RunSpec, run_dir: RunDir, resume: Resume, progress: Progress) -> None:
    """Restore the newest complete checkpoint of this run's name, if the disk has none as new. Prints what it does.

    Nothing is restored with --resume never or --resume STEP. Raises UserError if the bucket cannot be read and the run
    would start from the beginning: its progress may be in the bucket. With a checkpoint here, that is a warning.
    """
    backup = run.prime_train.backup
    if not may_save(run) or backup.provider in (None, "off"):
        return
    from prime_train.backups import sync
    from prime_train.backups.settings import describe
    from prime_train.backups.store import open_store

    store, where = open_store(backup), describe(backup)
    if resume != "auto":
        return
    write_note(f"backups: {where}/{run.run.name}")
    program = program_of(run)
    places = program.places(run, run_dir)
    if not program.knows_checkpoints(run, run_dir):
        _refuse_unknown(store, places, run, where)
        return
    sync.put_back(places)
    here = sync.newest_local(places)
    from prime_train.backups import pull

    began_s = time.monotonic()
    try:
        with progress(0, "restoring") as on_read:
            found = pull.restore_newest(store, run.run.name, places, on_read, _name_skipped)
    except UserError as error:
        if not here:
            raise UserError(
                what=error.what,
                where=error.where,
                why=f"{error.why}; the progress of this run may be there, and it would start from the beginning",
                fix="repeat when the bucket answers, or start from the beginning with --resume never",
                exit_code=ExitCode.OUT_OF_REACH,
            ) from None
        write_note(f"warning: {error.what} ({error.why}): the run continues from step {here:,} on this disk")
        return
    if found is not None:
        from prime_train.events import CheckpointRestored, EventLog

        seconds = round(time.monotonic() - began_s, 3)
        write_note(f"step {found.step:,} restored from {where}")
        log = EventLog(run_dir.events, "backup")
        try:
            log.append(CheckpointRestored(found.step, found.size_bytes, seconds, where))
        finally:
            log.close()


def _refuse_unknown(store: Store, places: StepPlaces, run: RunSpec, where: str) -> None:
    """Raise UserError if the bucket has backups of a run whose folder is not known here. Else print what is copied."""
    from prime_train.backups import inventory

    cure = "set command.checkpoints.dir and layout; for a script with prime_train.live dir and command.trainer"
    found = inventory.list_backups(store, run.run.name, places)
    if not found:
        write_note(f"nothing is copied before the folder and the layout of the checkpoints are known: {cure}")
        return
    raise UserError(
        what=f"the newest of its backups is of step {found[0].step:,}, and where it belongs is not known here",
        where=f"{where}/{run.run.name}",
        why="a checkpoint is restored before the command starts, which alone knows its folder",
        fix=f"{cure}; --resume never starts from the beginning",
    )


def copy_last(run: RunSpec, run_dir: RunDir, state: State) -> None:
    """Copy the newest checkpoint of a finished run into its bucket, if it is not there. Prints what it does.

    Its supervisor may have been killed after the last step, and no other one starts for a finished run.
    """
    from prime_train.supervise.core.event_text import describe
    from prime_train.supervise.services.backup import BackgroundBackup

    background = BackgroundBackup(run, run_dir, lambda: program_of(run).places(run, run_dir))
    try:
        background.flush(state, lambda: False, run.prime_train.backup.flush_limit_s)
    finally:  # also after Ctrl-C
        background.end()
    for event in background.results(state):
        write_note(describe(event))


def _name_skipped(stored: StoredBackup, problem: str) -> None:
    write_note(f"warning: the backup of step {stored.step:,} is not used ({problem}): the one before is looked at")
