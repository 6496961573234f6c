"""`prime-train ckpt`: tells which checkpoints are complete, deletes superseded ones, packs and restores."""

import json
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.checkpoint_work import alone, complete, keep_freed_memory, progress, worked
from prime_train.cli.options import AsJson, NoColor, RunName
from prime_train.errors import ExitCode

if TYPE_CHECKING:
    from prime_train.rundir import RunDir
    from prime_train.views.checkpoint_work import Worked

Step = Annotated[int | None, typer.Option("--step", metavar="N", min=1, help="Only the checkpoint of this step.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]


class Moments(StrEnum):
    """What `ckpt compress` can round moments to."""

    BF16 = "bf16"


app = typer.Typer(
    help="Checkpoints: list, verify, prune, compress, restore.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_(run: RunName, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every checkpoint of a run, newest first: size, age, what is wrong with it, which one a resume takes.

    Examples:

      prime-train ckpt list quickstart

      prime-train ckpt list quickstart --json | jq .resume_step
    """
    from prime_train.cli.render import table
    from prime_train.views import checkpoints as view
    from prime_train.views.runs import find
    from prime_train.views.status import fold_events

    run_dir = find(run, Path.cwd())
    rows = view.gather(run_dir, fold_events(run_dir).unreadable, time.time())
    if as_json:
        typer.echo(json.dumps(view.as_json(run_dir.path.name, rows), indent=1))
    elif rows:
        typer.echo(table(view.as_rows(rows), ("STEP", "SIZE", "AGE", ""), right=frozenset({0, 1, 2})))
    else:
        typer.echo(f"no checkpoint in {run_dir.checkpoints}", err=True)


@app.command("verify")
def verify(run: RunName, step: Step = None, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Read every byte of every checkpoint, packed or not, and compare it with the SHA-256 it was written with.

    Exit code 1 when one that was completed does not hold. A save that did not finish is shown and is no
    failure: no resume would take it.

    Examples:

      prime-train ckpt verify quickstart

      prime-train ckpt verify quickstart --json | jq '.checkpoints[] | select(.state == "broken")'
    """
    from prime_train.cli.render import table
    from prime_train.views import checkpoints as view
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    if step is not None:
        view.only(run_dir, step)
    with progress(view.total_bytes(run_dir, step), "reading") as on_read:
        results = list(view.verify(run_dir, on_read, step))
    if as_json:
        typer.echo(json.dumps(view.verified_as_json(run_dir.path.name, results), indent=1))
    elif not results:
        typer.echo(f"no checkpoint in {run_dir.checkpoints}", err=True)
    else:
        rows = [(str(found.step), found.state, found.problem) for found in results]
        typer.echo(table(rows, ("STEP", "STATE", ""), right=frozenset({0})))
    if any(verified.state == "broken" for verified in results):
        raise typer.Exit(ExitCode.FINDINGS)


@app.command("prune")
def prune(
    run: RunName,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", min=1, help="Newest complete ones to keep; without it checkpoint.keep_last."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Delete checkpoints that newer ones have superseded, and what saves that did not finish left behind.

    Never the newest complete one, nor one at a multiple of checkpoint.keep_every_steps, nor one with a file
    PINNED in its folder, nor one that somebody reads. A run that is alive is left alone; --dry-run shows what
    would go of it. Of a run of prime-rl also broadcasts that no engine reads any more, and rollouts from before
    the newest complete checkpoint.

    Examples:

      prime-train ckpt prune quickstart --dry-run

      prime-train ckpt prune quickstart --keep-last 1
    """
    from contextlib import nullcontext
    from dataclasses import replace

    from prime_train.checkpoints.inventory import Stock
    from prime_train.cli import pruning
    from prime_train.cli.render import table
    from prime_train.views import pruning as view
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    places, keep = pruning.kept_by(run_dir)
    with nullcontext() if dry_run else alone(run_dir):
        keep = replace(keep, keep_last=keep_last or keep.keep_last)
        plan = view.pruning(Stock(places).take(time.time()), keep, time.time())
        failed = {} if dry_run else pruning.delete(run_dir, places, plan)
    rows = view.rows(plan, failed)
    if as_json:
        typer.echo(json.dumps(view.as_json(run_dir.path.name, plan, failed, dry_run=dry_run), indent=1))
    elif rows:
        header = ("WHAT", "STEP", "SIZE", "WOULD" if dry_run else "DID", "WHY")
        if places.prime_rl is None:
            typer.echo(table([row[1:] for row in rows], header[1:], right=frozenset({0, 1})))
        else:
            typer.echo(table(rows, header, right=frozenset({1, 2})))
    else:
        typer.echo(f"no checkpoint in {places.checkpoints}", err=True)
    if failed:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command("compress")
def compress(
    run: RunName,
    step: Step = None,
    moments: Annotated[
        Moments | None,
        typer.Option("--moments", help="LOSSY: round AdamW's moments to this type, for ever; weights stay bit-equal."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Pack complete checkpoints without loss; a resume restores the one it takes.

    A checkpoint in fp32 loses about a sixth of its size, one in bf16 about a third. It needs 256 MiB of room,
    may be interrupted at any moment and given again, and nothing is cut off before it was unpacked and compared.

    With --moments bf16 half of one in fp32 goes. What is rounded off does not come back: a run that resumes from it
    goes on from the same weights, and takes steps that differ a little.

    Examples:

      prime-train ckpt compress quickstart --dry-run

      prime-train ckpt compress quickstart --step 500

      prime-train ckpt compress quickstart --step 500 --moments bf16 --dry-run
    """
    from prime_train.checkpoints import archive, packing_plan
    from prime_train.views import checkpoint_work as view
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    keep_freed_memory()
    lossy = moments is not None
    work = archive.compress_lossy if lossy else archive.compress
    left = packing_plan.lossy_work_bytes if lossy else packing_plan.work_bytes
    with alone(run_dir):
        chosen = [c for c in complete(run_dir, step) if left(c.path) or packing_plan.has_leftovers(c.path)]
        if dry_run:
            results = [view.planned(found, lossy=lossy) for found in chosen]
        else:
            with progress(sum(left(found.path) for found in chosen), "packing") as on_read:
                results = [worked(found, partial(work, on_read=on_read)) for found in chosen]
    _tell_worked(run_dir, results, as_json=as_json, dry_run=dry_run, nothing="nothing is left to pack")


@app.command("restore")
def restore(run: RunName, step: Step = None, as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Give back the files of packed checkpoints, byte for byte, for a program that reads them itself.

    Examples:

      prime-train ckpt restore quickstart

      prime-train ckpt restore quickstart --step 500
    """
    from prime_train.checkpoints import archive, packing_plan
    from prime_train.views.runs import find

    run_dir = find(run, Path.cwd())
    keep_freed_memory()
    with alone(run_dir):
        chosen = [
            c for c in complete(run_dir, step) if packing_plan.is_packed(c.path) or packing_plan.has_leftovers(c.path)
        ]
        with progress(sum(packing_plan.packed_bytes(found.path) for found in chosen), "restoring") as on_read:
            results = [worked(found, partial(archive.restore, on_read=on_read)) for found in chosen]
    _tell_worked(run_dir, results, as_json=as_json, dry_run=False, nothing="nothing is packed")


def _tell_worked(run_dir: "RunDir", results: "list[Worked]", *, as_json: bool, dry_run: bool, nothing: str) -> None:
    from prime_train.cli.render import table
    from prime_train.views import checkpoint_work as view

    if as_json:
        typer.echo(json.dumps(view.worked_as_json(run_dir.path.name, results, dry_run=dry_run), indent=1))
    elif results:
        header = ("STEP", "AS SAVED", "ABOUT" if dry_run else "ON DISK", "SMALLER BY", "")
        typer.echo(table(view.worked_rows(results), header, right=frozenset({0, 1, 2, 3})))
    else:
        typer.echo(f"{nothing} in {run_dir.checkpoints}", err=True)
    if any(one.problem for one in results):
        raise typer.Exit(ExitCode.FINDINGS)
