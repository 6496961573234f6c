"""`prime-train ckpt`: lists, asks for, pins, verifies, prunes, packs, restores and exports the checkpoints of a run.

A command imports what the list does not need, because start-up is a fifth of a list of 30,000 checkpoints.
"""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prime_train.checkpoints.packing import packing_plan
from prime_train.cli import ckpt_convert
from prime_train.cli.control import pin
from prime_train.cli.control.command import Timeout, Why, give_command
from prime_train.cli.terminal.options import AsJson, DryRun, NoColor, RunName, Step
from prime_train.cli.terminal.output import print_json, print_table, show_bytes
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.programs import recorded
from prime_train.supervise.processes.lock import hold_idle_run
from prime_train.views.run import checkpoints
from prime_train.views.run.runs import find
from prime_train.views.run.status import fold_events

if TYPE_CHECKING:
    from prime_train.checkpoints.step_folders import StepPlaces
    from prime_train.views.run.checkpoint_changes import Pruning

app = typer.Typer()
_MOST_OBJECTS = 10_000_000  # of a list of a million checkpoints


@app.command("list")
def list_(run: RunName, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every checkpoint of a run, newest first: size, age, problem, and which one a resume loads.

    Examples:

      prime-train ckpt list quickstart

      prime-train ckpt list quickstart --json | jq .resume_step
    """
    _expect_many()
    run_dir = find(run, Path.cwd())
    found = sorted([*checkpoints.saved(run_dir), *checkpoints.packed(run_dir)], key=lambda one: -one.step)
    unreadable = fold_events(run_dir).unreadable
    program, spec = recorded(run_dir)
    others = checkpoints.list_beside(program.places(spec, run_dir))
    if as_json:
        print_json(checkpoints.list_json(run_dir.path.name, found, unreadable, time.time()) | others)
    else:
        rows = checkpoints.list_rows(found, unreadable, time.time())
        print_table(rows, ("STEP", "SIZE", "AGE", ""), program.describe_search(spec, run_dir))
        if beside := checkpoints.beside_rows(others):
            print_table(beside, ("BESIDE", "SIZE", ""), "")


@app.command("now")
def now(run: RunName, why: Why = "", timeout_s: Timeout = None, _no_color: NoColor = False) -> None:
    """Save a checkpoint after the next step, and train on. The run must be supervised.

    Examples:

      prime-train ckpt now quickstart

      prime-train ckpt now quickstart --why "before the disk is moved"
    """
    typer.echo(give_command(run, "checkpoint", why, timeout_s).what)


@app.command("verify")
def verify(run: RunName, step: Step = None, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Read every byte of every checkpoint, packed or not, and compare it with the SHA-256 of its manifest.

    Exit code 1: a complete checkpoint is damaged. A save that did not finish is shown but is no failure, because no
    resume loads it.

    Examples:

      prime-train ckpt verify quickstart

      prime-train ckpt verify quickstart --json | jq '.checkpoints[] | select(.state == "broken")'
    """
    run_dir = find(run, Path.cwd())
    if step is not None:
        checkpoints.find_checkpoint(run_dir, step)
    with show_bytes(checkpoints.total_bytes(run_dir, step), "reading") as on_read:
        results = list(checkpoints.verify(run_dir, on_read, step))
    if as_json:
        print_json(checkpoints.verify_json(run_dir.path.name, results))
    else:
        rows = [(str(found.step), found.state, found.problem) for found in results]
        program, spec = recorded(run_dir)
        print_table(rows, ("STEP", "STATE", ""), program.describe_search(spec, run_dir))
    if any(verified.state == "broken" for verified in results):
        raise typer.Exit(ExitCode.FINDINGS)


@app.command("prune")
def prune(
    run: RunName,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", min=1, help="Newest complete ones to keep. Default: checkpoint.keep_last."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Delete checkpoints that newer ones have superseded, and the remains of saves that did not finish.

    Keeps the newest complete checkpoint, those at a multiple of checkpoint.keep_every_steps, those with a file PINNED
    in their folder, and those in use. Refuses a live run, but --dry-run works on one. For a run of prime-rl it also
    deletes broadcasts that no engine reads any more, and rollouts older than the newest complete checkpoint.

    Examples:

      prime-train ckpt prune quickstart --dry-run

      prime-train ckpt prune quickstart --keep-last 1
    """
    from prime_train.checkpoints.stock import Stock
    from prime_train.views.run import checkpoint_changes as changes

    _expect_many()
    run_dir = find(run, Path.cwd())
    program, spec = recorded(run_dir)
    places, keep = program.places(spec, run_dir), program.keep(spec)
    with nullcontext() if dry_run else hold_idle_run(run_dir):
        keep = replace(keep, keep_last=keep_last or keep.keep_last)
        plan = changes.plan_pruning(Stock(places).take(time.time()), keep, time.time())
        failed = {} if dry_run else _delete(run_dir, places, plan)
    if as_json:
        print_json(changes.prune_json(run_dir.path.name, plan, failed, dry_run=dry_run))
    else:
        first = 0 if places.weights or places.broadcasts or places.rollouts else 1  # column WHAT: only checkpoints
        header = ("WHAT", "STEP", "SIZE", "WOULD" if dry_run else "DID", "WHY")
        rows = [row[first:] for row in changes.prune_rows(plan, failed)]
        print_table(rows, header[first:], program.describe_search(spec, run_dir))
    if failed:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command("compress")
def compress(
    run: RunName,
    step: Step = None,
    moments: Annotated[
        Literal["bf16"] | None,
        typer.Option("--moments", help="LOSSY: round AdamW's moments to this type for good; weights stay bit-equal."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Pack complete checkpoints without loss; a resume restores the one that it loads.

    Saves about a sixth of a checkpoint in fp32 and about a third of one in bf16. Needs 256 MiB of free space. May be
    interrupted and repeated: each part is unpacked and compared before the original is cut.

    A checkpoint of another trainer is moved into `packed-0/` beside the others, so that its trainer does not look for
    its files. The newest two complete ones stay, and so do the best one and the one that its trainer names. Refused
    where nothing shows that its trainer leaves such a folder alone.

    --moments bf16 saves half of a checkpoint in fp32, and the rounding is final: a run that resumes from it has the
    same weights, and its further steps differ slightly.

    Examples:

      prime-train ckpt compress quickstart --dry-run

      prime-train ckpt compress quickstart --step 500

      prime-train ckpt compress quickstart --step 500 --moments bf16 --dry-run
    """
    from prime_train.checkpoints.packing import archive
    from prime_train.views.run import checkpoint_changes as changes
    from prime_train.views.run import foreign_packing

    run_dir = find(run, Path.cwd())
    archive.keep_freed_memory()
    lossy = moments is not None
    if (places := foreign_packing.find_places(run_dir)) is not None:
        results = _pack_foreign(run_dir, places, step, lossy=lossy, dry_run=dry_run)
        _print_results(run_dir, results, as_json=as_json, dry_run=dry_run, nothing="nothing is left to pack")
        return
    work = archive.compress_lossy if lossy else archive.compress
    left = packing_plan.lossy_work_bytes if lossy else packing_plan.work_bytes
    with hold_idle_run(run_dir):
        chosen = [c for c in checkpoints.complete(run_dir, step) if left(c.path) or packing_plan.has_leftovers(c.path)]
        if dry_run:
            results = [changes.plan_packing(found, lossy=lossy) for found in chosen]
        else:
            with show_bytes(sum(left(found.path) for found in chosen), "packing") as on_read:
                results = [changes.work_on(found, partial(work, on_read=on_read)) for found in chosen]
    _print_results(run_dir, results, as_json=as_json, dry_run=dry_run, nothing="nothing is left to pack")


def _pack_foreign(
    run_dir: RunDir, places: StepPlaces, step: int | None, *, lossy: bool, dry_run: bool
) -> list[dict[str, Any]]:
    from prime_train.views.run import foreign_packing

    with hold_idle_run(run_dir):
        work = foreign_packing.choose_work(run_dir, places, step, lossy=lossy, dry_run=dry_run)
        if dry_run:
            return foreign_packing.plan(work)
        with show_bytes(work.total_bytes, "packing") as on_read:
            return foreign_packing.pack(work, on_read)


@app.command("restore")
def restore(run: RunName, step: Step = None, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Unpack packed checkpoints, byte for byte, for programs that read their files.

    A checkpoint of another trainer gets its name back, with the modes and times of its files.

    Examples:

      prime-train ckpt restore quickstart

      prime-train ckpt restore quickstart --step 500
    """
    from prime_train.checkpoints.packing import archive
    from prime_train.views.run import checkpoint_changes as changes
    from prime_train.views.run import foreign_packing

    run_dir = find(run, Path.cwd())
    archive.keep_freed_memory()
    if (places := foreign_packing.find_places(run_dir)) is not None:
        with (
            hold_idle_run(run_dir),
            show_bytes(foreign_packing.count_packed_bytes(places, step), "restoring") as on_read,
        ):
            results = foreign_packing.unpack(run_dir, places, step, on_read)
        _print_results(run_dir, results, as_json=as_json, dry_run=False, nothing="nothing is packed")
        return
    with hold_idle_run(run_dir):
        found = checkpoints.complete(run_dir, step)
        chosen = [c for c in found if packing_plan.is_packed(c.path) or packing_plan.has_leftovers(c.path)]
        with show_bytes(sum(packing_plan.packed_bytes(found.path) for found in chosen), "restoring") as on_read:
            results = [changes.work_on(found, partial(archive.restore, on_read=on_read)) for found in chosen]
    _print_results(run_dir, results, as_json=as_json, dry_run=False, nothing="nothing is packed")


def _expect_many() -> None:
    """Look for garbage rarely: of thousands of checkpoints all stays until the end, and looking takes a tenth."""
    gc.freeze()
    gc.set_threshold(_MOST_OBJECTS)


app.command("pin")(pin.pin)
app.command("to-hf")(ckpt_convert.to_hf)
app.command("consolidate")(ckpt_convert.consolidate)


def _print_results(
    run_dir: RunDir, results: list[dict[str, Any]], *, as_json: bool, dry_run: bool, nothing: str
) -> None:
    from prime_train.views.run import checkpoint_changes as changes

    document = changes.packing_json(run_dir.path.name, results, dry_run=dry_run)
    if as_json:
        print_json(document)
    else:
        header = ("STEP", "AS SAVED", "ABOUT" if dry_run else "ON DISK", "SMALLER BY", "")
        print_table(changes.packing_rows(document), header, f"{nothing} in {run_dir.checkpoints}")
    if any(one["problem"] for one in results):
        raise typer.Exit(ExitCode.FINDINGS)


def _delete(run_dir: RunDir, places: StepPlaces, plan: Pruning) -> dict[tuple[Path, ...], str]:
    """Carry out the plan and write each deletion as an event. Returns the deletions that failed, and why."""
    from prime_train.events import CheckpointDeleted, EventLog, SpaceFreed
    from prime_train.supervise.watches.disk.removal_program import Order, carry_out

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
