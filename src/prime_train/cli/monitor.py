"""`prime-train monitor`: one poll of a run on spot machines, which is resumed if it is dead."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from prime_train.away.monitor.decide import MonitorLimits
from prime_train.away.monitor.driver import PollDriver, Watched, find_sky
from prime_train.away.monitor.github import open_repository
from prime_train.away.monitor.poll import PollResult, PollSetting, as_lines, as_summary, poll
from prime_train.away.monitor.poll import as_json as describe_poll
from prime_train.cli.terminal.options import AsJson, Config, NoColor
from prime_train.cli.terminal.render import labelled
from prime_train.core.errors import ExitCode, UserError
from prime_train.spec import Backup

_PATH = re.compile(r"[\w.-]+/[\w.-]+/[\w.-]+")
_AUTHOR = "github-actions[bot]"  # the login of a workflow's own token


def monitor(
    config: Config,
    wandb: Annotated[
        str, typer.Option("--wandb", metavar="ENTITY/PROJECT/ID", help="The run at W&B.", show_default=False)
    ],
    run_name: Annotated[
        str | None,
        typer.Option("--run-name", metavar="NAME", help="The name of the run and of its job. Default: run.name."),
    ] = None,
    cloud: Annotated[str, typer.Option("--cloud", metavar="NAME", help="Where to start it again.")] = "auto",
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="NAME", help="The bucket of its checkpoints, as run --spot shows it."),
    ] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option("--max-usd-per-hour", min=0.01, help="Highest price of a machine.")
    ] = None,
    author: Annotated[
        str, typer.Option("--author", metavar="LOGIN", help="The login of the token; no issue of another one is read.")
    ] = _AUTHOR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and decide; change nothing.")] = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Poll a run on spot machines once, and resume it if it is dead.

    Reads the verdict of `status --wandb` and the queue of managed jobs, decides, and starts the run with
    `run --spot --resume auto` if no job of it is live. What it knows is kept in an issue of the GitHub repository;
    `init --github-actions` writes the workflow that calls it.

    Exit codes: 0 nothing to do, or resumed; 1 given up, or the start failed; 4 W&B, SkyPilot or GitHub is out of reach.

    Examples:

      prime-train monitor run.toml --wandb my-team/spot/7f3a --bucket my-checkpoints --dry-run

      prime-train monitor run.toml --wandb my-team/spot/7f3a --bucket my-checkpoints --json | jq .action
    """
    if not _PATH.fullmatch(wandb):
        why = "a run at W&B is named by its entity, project and id"
        raise UserError(f"{wandb!r} is no ENTITY/PROJECT/ID", "--wandb", why, "copy it from the address of the run")
    name, limits = _read_config(config, run_name, bucket)
    watched = Watched(config, name, wandb, cloud, bucket, max_usd_per_hour)
    repository = None if dry_run and "GITHUB_REPOSITORY" not in os.environ else open_repository(os.environ)
    driver = PollDriver(repository, watched, find_sky(os.environ), os.environ)
    result = poll(PollSetting(name, author, limits, dry_run), driver, time.time)
    document = describe_poll(name, result)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        typer.echo(labelled(name, as_lines(document), sys.stdout))
    _write_summary(as_summary(document))
    raise typer.Exit(_exit_code(result))


def _exit_code(result: PollResult) -> ExitCode:
    if result.decision.action == "give-up" or " failed: " in result.outcome:
        return ExitCode.FINDINGS
    return ExitCode.OUT_OF_REACH if result.reading.jobs is None else ExitCode.OK


def _read_config(config: str, run_name: str | None, bucket: str | None) -> tuple[str, MonitorLimits]:
    """The name of the run, and the limits. Progress is a newer checkpoint, so they need its interval.

    Raises UserError for a run whose checkpoints another machine would not find.
    """
    from prime_train.cli.estimate import inputs

    run = inputs.check_run(inputs.parse_config(inputs.EstimateOptions(config)))
    name = run_name or run.run.name
    if not name:
        raise UserError(
            what="the run has no name",
            where=config,
            why="its managed job is found by the name",
            fix="set run.name, or --run-name",
        )
    if bucket is None and replace(run.prime_train.backup, compress=False) == Backup():
        raise UserError(
            what="it is not known where the checkpoints are",
            where="prime-train monitor",
            why="a run that is started from another machine gets another bucket by default, and starts over",
            fix="--bucket with the name that run --spot showed, or [prime_train.backup] in the config",
        )
    most = run.prime_train.restart.max_fruitless_attempts
    return name, MonitorLimits(interval_steps=run.checkpoint.interval_steps or run.run.max_steps, most_fruitless=most)


def _write_summary(text: str) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:  # the poll itself is done
        typer.echo(f"the summary cannot be written: {error.strerror}", err=True)
