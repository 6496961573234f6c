"""`prime-train backup`: configures backups, pushes, pulls, prunes, verifies and lists them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.backups import inventory, pull, settings, sync
from prime_train.backups import source as sources
from prime_train.backups.push import prepare, push
from prime_train.backups.source import ChangedError, Hashes
from prime_train.backups.store import ObjectError, Store, open_store
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.cli.backup_configure import configure
from prime_train.cli.terminal.options import AsJson, DryRun, NoColor, RunName, Step
from prime_train.cli.terminal.output import print_json, print_table, show_bytes
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_bytes
from prime_train.programs import recorded
from prime_train.spec import RunSpec
from prime_train.supervise.processes.lock import hold_idle_run
from prime_train.views.backups import status_json, status_rows
from prime_train.views.run.runs import find, is_run

AnyRun = Annotated[
    str, typer.Argument(metavar="RUN", help="A run: its name, or the path of its directory.", show_default=False)
]

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class _OpenedBackup:
    """A run, its settings and its bucket."""

    name: str
    run_dir: RunDir
    run: RunSpec
    places: StepPlaces
    store: Store


def _open(name: str) -> _OpenedBackup:
    """The run with this name, in ./runs where only the bucket has it. Raises UserError."""
    usual = RunDir((Path.cwd() / "runs" / name).resolve())
    is_elsewhere = settings.is_safe_run_name(name) and not is_run(usual.path) and not is_run(Path.cwd() / name)
    run_dir = usual if is_elsewhere else find(name, Path.cwd())
    program, run = recorded(run_dir)
    backup = settings.resolve(run.prime_train.backup)
    if backup is None:
        raise UserError(
            what="no backup is configured",
            where=str(run_dir.path),
            why="neither the config of the run nor the user's defaults name a provider",
            fix="prime-train backup configure, or [prime_train.backup] provider and bucket in the config",
        )
    return _OpenedBackup(run_dir.path.name, run_dir, run, program.places(run, run_dir), open_store(backup))


@app.command("push")
def push_(
    run: RunName,
    step: Step = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Pack the copies on their way, without loss. compress = true does the same.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Copy complete checkpoints into the bucket. Continues where an earlier push was interrupted.

    Without --step: those that the retention of the bucket would keep, newest first.

    Examples:

      prime-train backup push my-run --dry-run

      prime-train backup push my-run --step 500 --pack
    """
    opened = _open(run)
    if pack:
        opened = replace(opened, store=replace(opened.store, backup=replace(opened.store.backup, compress=True)))
    local = sources.list_sources(opened.places)
    backups = inventory.list_backups(opened.store, opened.name, opened.places)
    if step is None:
        due = sync.list_due(local, backups, opened.store.backup.keep_last, None)
    else:
        due = [one for one in local if one.step == step]
        if not due:
            raise _no_such_step(step, [one.step for one in local], str(opened.places.checkpoints[0]), "ckpt list")
    rows = [{"step": one.step, "size_bytes": one.size_bytes, "did": "would push", "problem": ""} for one in due]
    if not dry_run:
        with sync.hold(opened.run_dir.backup), show_bytes(sum(one.size_bytes for one in due), "pushing") as on_sent:
            rows = [_push(opened, one, on_sent) for one in due]
    _print(opened, "push", rows, as_json, f"every complete checkpoint is in {opened.store.root}/{opened.name}")


def _push(opened: _OpenedBackup, source: sources.BackupSource, on_sent: Any) -> dict[str, Any]:
    upload = prepare(opened.store, opened.name, opened.places, Hashes(opened.run_dir.backup / "hashes.json"))
    row = {"step": source.step, "size_bytes": source.size_bytes, "did": "failed", "problem": ""}
    try:
        done = push(upload, source, on_sent)
    except ChangedError as error:
        return row | {"problem": str(error)}
    except ObjectError as error:
        return row | {"problem": f"{error.what}: {error.why}"}
    return row | {
        "did": "was there" if done.already else "pushed",
        "stored_bytes": done.stored_bytes,
        "sent_bytes": done.sent_bytes,
        "seconds": done.seconds,
    }


@app.command("pull")
def pull_(
    run: AnyRun, step: Step = None, dry_run: DryRun = False, as_json: AsJson = False, _no_color: NoColor = False
) -> None:
    """Restore a checkpoint from the bucket: the newest complete one, or that of --step.

    Every byte is verified beside its place before it is used. A backup that is damaged is named, and the one before is
    taken. A complete checkpoint on the disk is never replaced.

    Examples:

      prime-train backup pull my-run --dry-run

      prime-train backup pull my-run --step 500
    """
    opened = _open(run)
    backups = inventory.list_backups(opened.store, opened.name, opened.places)
    wanted = [one for one in backups if step in (None, one.step)]
    chosen = next((one for one in wanted if one.complete and one.manifest is not None), None)
    if chosen is None or chosen.manifest is None:
        have = [one.step for one in backups if one.complete]
        raise _no_such_step(step, have, f"{opened.store.root}/{opened.name}", "backup status", _name_broken(wanted))
    here = {one.step for one in sources.list_sources(opened.places)}
    row = {"step": chosen.step, "size_bytes": chosen.manifest.size_bytes, "did": "would pull", "problem": ""}
    if chosen.step in here:
        row |= {"did": "was there"}
    if dry_run or chosen.step in here:
        skipped = [_skipped(one, one.problem) for one in wanted[: wanted.index(chosen)] if one.broken]
        _print(opened, "pull", [*skipped, row], as_json, "")
        return
    rows: list[dict[str, Any]] = []
    newer = list(takewhile(lambda one: one.step not in here, wanted))

    def skip(one: inventory.StoredBackup, problem: str) -> None:
        rows.append(_skipped(one, problem))

    with hold_idle_run(opened.run_dir), show_bytes(chosen.manifest.size_bytes, "pulling") as on_read:
        pulled = pull.pull_newest(opened.store, newer, opened.places, on_read, skip)
    if pulled is not None:
        done = {"step": pulled.step, "size_bytes": pulled.size_bytes, "did": "pulled", "problem": ""}
        rows.append(done | {"folders": [str(folder) for folder in pulled.folders]})
    _print(opened, "pull", rows, as_json, "")


def _skipped(stored: inventory.StoredBackup, problem: str) -> dict[str, Any]:
    return {"step": stored.step, "size_bytes": stored.stored_bytes, "did": "skipped", "problem": problem}


def _name_broken(backups: Sequence[inventory.StoredBackup]) -> str:
    broken = next((one for one in backups if one.broken), None)
    return "" if broken is None else f"; step {broken.step} cannot be used: {broken.problem}"


@app.command("prune")
def prune_(
    run: AnyRun,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=1, help="Newest complete ones to keep. Default: backup.keep_last.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Delete backups that newer ones have superseded, and the remains of uploads that did not finish.

    Keeps the newest complete backup, which it proves first as verify does, those at a multiple of
    checkpoint.keep_every_steps, and pinned ones.

    Examples:

      prime-train backup prune my-run --dry-run

      prime-train backup prune my-run --keep-last 2
    """
    opened = _open(run)
    keep, keep_every_steps = keep_last or opened.store.backup.keep_last, opened.run.checkpoint.keep_every_steps
    with nullcontext() if dry_run else sync.hold(opened.run_dir.backup):
        backups = inventory.list_backups(opened.store, opened.name, opened.places)
        newest = inventory.newest_complete(backups)
        with show_bytes(newest.stored_bytes if newest is not None else 0, "proving the newest") as on_read:
            backups = sync.prove_newest(opened.store, backups, on_read)
        now_s = sync.read_now_s(opened.store, backups)
        rows = [_prune(opened, one, dry_run) for one in sync.plan(backups, keep, keep_every_steps, now_s)]
    _print(opened, "prune", rows, as_json, "nothing to delete", column="WHY")


def _prune(opened: _OpenedBackup, planned: sync.BackupDeletion, dry_run: bool) -> dict[str, Any]:
    stored = planned.stored
    row = {"step": stored.step, "size_bytes": stored.stored_bytes, "did": "would delete", "problem": planned.reason}
    if dry_run:
        return row
    try:
        sync.delete(opened.store, stored)
    except ObjectError as error:
        return row | {"did": "failed", "problem": f"{error.what}: {error.why}"}
    return row | {"did": "deleted"}


@app.command("verify")
def verify_(run: AnyRun, step: Step = None, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Prove every object of the complete backups by the hash that the provider stores, or by reading it.

    Exit code 1: an object is not what was uploaded. An upload that did not finish is no failure.

    Examples:

      prime-train backup verify my-run

      prime-train backup verify my-run --step 500
    """
    opened = _open(run)
    backups = inventory.list_backups(opened.store, opened.name, opened.places)
    chosen = [one for one in backups if step in (None, one.step) and (one.complete or one.broken)]
    if step is not None and not chosen:
        where = f"{opened.store.root}/{opened.name}"
        raise _no_such_step(step, [one.step for one in backups if one.complete], where, "backup status")
    rows = []
    with show_bytes(sum(one.stored_bytes for one in chosen if one.complete), "verifying") as on_read:
        for one in chosen:
            problem = one.problem or sync.verify(opened.store, one, on_read)
            did = "verified" if not problem else "damaged" if one.judged else "not read"
            rows.append({"step": one.step, "size_bytes": one.stored_bytes, "did": did, "problem": problem})
    _print(opened, "verify", rows, as_json, f"no complete backup in {opened.store.root}/{opened.name}")


@app.command("status")
def status_(run: AnyRun, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every backup of a run, newest first: size, age, problem, and whether the checkpoint is on this disk, too.

    Examples:

      prime-train backup status my-run

      prime-train backup status my-run --json | jq .newest_complete_step
    """
    opened = _open(run)
    backups = inventory.list_backups(opened.store, opened.name, opened.places)
    here = {one.step for one in sources.list_sources(opened.places)}
    document = status_json(opened.name, settings.describe(opened.store.backup), backups, here)
    if as_json:
        print_json(document)
        return
    typer.echo(f"{document['location']}/{opened.name}")
    print_table(status_rows(document, time.time()), ("STEP", "SIZE", "STORED", "AGE", "HERE", ""), "no backup")


app.command("configure")(configure)


def _no_such_step(step: int | None, have: Sequence[int], where: str, command: str, further: str = "") -> UserError:
    steps = ", ".join(map(str, sorted(have))) or "none"
    return UserError(
        what=f"no complete one of step {step}" if step is not None else "there is no complete one",
        where=where,
        why=f"complete steps: {steps}{further}",
        fix=f"prime-train {command} RUN lists them",
    )


def _print(
    opened: _OpenedBackup, what: str, rows: Sequence[dict[str, Any]], as_json: bool, nothing: str, column: str = ""
) -> None:
    """Print the rows of a command as a table or as JSON. Exit code 1 if one failed."""
    if as_json:
        location = settings.describe(opened.store.backup)
        document = {"version": 1, "run": opened.name, "location": location, "command": what, "steps": list(rows)}
        print_json(document)
    else:
        lines = [(str(row["step"]), format_bytes(row["size_bytes"]), row["did"], row["problem"]) for row in rows]
        print_table(lines, ("STEP", "SIZE", "DID", column), nothing)
    if any(row["did"] in ("failed", "damaged", "not read") for row in rows):
        raise typer.Exit(ExitCode.FINDINGS)
