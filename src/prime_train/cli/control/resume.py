"""`prime-train resume`: goes on with a paused run, or goes back to an earlier checkpoint of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prime_train.checkpoints.layout import inspect
from prime_train.cli.control.command import Timeout, Why, give_command
from prime_train.cli.terminal.options import DryRun, NoColor, RunName
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.core.units import counted, format_seconds
from prime_train.events import Follower
from prime_train.programs import recorded
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.run.given_up import measure_given_up
from prime_train.views.run.runs import find


def resume(
    run: RunName,
    step: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="STEP", min=1, help="Go back to the checkpoint of this step.", show_default=False
        ),
    ] = None,
    dry_run: DryRun = False,
    why: Why = "",
    timeout_s: Timeout = None,
    _no_color: NoColor = False,
) -> None:
    """Go on with a paused run, or go back to an earlier checkpoint.

    With --from, a run that trains saves and ends its attempt first, and one that has ended is supervised here, as
    `run` does. Later checkpoints are renamed, not deleted, and every rank starts from STEP.

    Examples:

      prime-train resume quickstart

      prime-train resume quickstart --from 200 --dry-run

      prime-train resume quickstart --from 200 --why "the loss diverged"
    """
    run_dir = find(run, Path.cwd())
    is_supervised = find_holder(run_dir) is not None
    if step is not None:
        later = _check(run_dir, step)
        typer.echo(_describe(run_dir, step, later), err=not dry_run)
        if not dry_run and not is_supervised:
            raise typer.Exit(_start(run_dir, step))
    elif not is_supervised:
        raise UserError(
            what="the run is not paused: no supervisor runs it",
            where=str(run_dir.path),
            why="the command that started a run resumes it",
            fix=f"prime-train run CONFIG, with the config of the run; its text is {run_dir.config}",
        )
    if dry_run:
        return
    values = {} if step is None else {"step": step}
    typer.echo(give_command(run, "resume" if step is None else "go_back", why, timeout_s, **values).what)


def _check(run_dir: RunDir, step: int) -> tuple[int, ...]:
    """The steps of the later checkpoints. Raises UserError if that of `step` is not whole, by all of its bytes."""
    program, spec = recorded(run_dir)
    found = program.checkpoints(spec, run_dir)
    named = next((one for one in found if one.step == step), None)
    if named is not None and program.keeps_hashes:
        named = inspect(named.path, hashes=True)
    problem = "there is no such checkpoint" if named is None else named.problem
    if problem:
        have = ", ".join(str(one.step) for one in reversed(found) if one.complete) or "none"
        raise UserError(
            what=f"step {step:,} cannot be resumed from: {problem}",
            where=str(named.path if named is not None else run_dir.path),
            why="only a complete checkpoint holds the whole state of a run",
            fix=f"complete checkpoints: {have}",
        )
    return tuple(sorted(one.step for one in found if one.step > step))


def _describe(run_dir: RunDir, step: int, later: tuple[int, ...]) -> str:
    """What is given up, and which checkpoints get other names."""
    steps, seconds = measure_given_up(Follower(run_dir.events).stream(), step)
    renamed = f"; set aside: the checkpoints of step {', '.join(map(str, later))}" if later else ""
    return (
        f"back to step {step:,}: {counted(steps, 'step')} and {format_seconds(seconds)} of training given up{renamed}"
    )


def _start(run_dir: RunDir, step: int) -> ExitCode:
    """Supervise a run that has ended, as `run CONFIG --resume STEP` does."""
    from prime_train.cli.run.command import run as start  # here, because a run that is supervised needs none of it
    from prime_train.cli.run.preflight import Command, check_config

    named = check_config(Command(str(run_dir.config), run_dir.path.name, ()), validate=False, unchecked="").run_dir
    if named.path != run_dir.path:
        raise UserError(
            what=f"its config names another directory here: {named.path}",
            where=str(run_dir.config),
            why="run.dir is read from the folder in which the run was started",
            fix=f"cd to that folder; then give the command that started the run, with --resume {step}",
        )
    try:
        start([str(run_dir.config)], run_dir.path.name, resume=str(step))
    except typer.Exit as end:
        return ExitCode(end.exit_code)
    return ExitCode.OK
