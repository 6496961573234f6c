"""`prime-train trainers`: the trainers of others that can be supervised, and what a log shows of a run. Reads only."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import json_text, labelled, table, terminal_columns
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.registry.trainers import TrainerProfile, trainer_profiles
from prime_train.toml.did_you_mean import nearest
from prime_train.views import trainers as view

app = typer.Typer()


def _complete(incomplete: str) -> list[str]:
    return [name for name in trainer_profiles() if name.startswith(incomplete)]


@app.command("list")
def list_trainers(as_json: AsJson = False, _no_color: NoColor = False) -> None:
    """Every trainer with a profile: what it prints, how it resumes and stops.

    Examples:

      prime-train trainers list

      prime-train trainers list --json | jq -r '.trainers[].name'
    """
    profiles = trainer_profiles().values()
    if as_json:
        typer.echo(json_text(view.trainers_json(profiles)))
    else:
        typer.echo(table(view.as_rows(profiles), view.HEADER, frozenset({2, 3}), terminal_columns(sys.stdout)))


@app.command("show")
def show(
    trainer: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of a profile.", autocompletion=_complete, show_default=False)
    ],
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """One trainer: lines, files, checkpoints, resume, stop and exit codes.

    Examples:

      prime-train trainers show torchtitan

      prime-train trainers show hf --json
    """
    profile = _find(trainer, f"prime-train trainers show {trainer}")
    if as_json:
        typer.echo(json_text(view.trainers_json([profile])))
    else:
        typer.echo(labelled(profile.name, view.as_lines(profile), sys.stdout))


@app.command("check")
def check(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="A trainer's output, or a file of metrics.", show_default=False)
    ],
    trainer: Annotated[
        str,
        typer.Option(
            "--trainer", metavar="NAME", help="Read it by this profile.", autocompletion=_complete, show_default=False
        ),
    ] = "",
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Which trainer wrote a log, what it shows, and what is not known. Exit code 4: no profile takes a line.

    Examples:

      prime-train trainers check train.log

      prime-train trainers check train.log --trainer hf --json
    """
    # Here, because `list` and `show` read no log.
    from prime_train.programs.command.progress.check_log import check_log

    if trainer:
        _find(trainer, f"--trainer {trainer}")
    try:
        checked = check_log(log, trainer)
    except OSError as error:
        raise outside.as_user_error(error, str(log), "name the file with the output of a trainer") from None
    document = view.log_json(checked)
    if as_json:
        typer.echo(json_text(document))
    elif checked.trainer or checked.kind != "log":
        typer.echo(labelled(str(log), view.log_lines(document, checked.summary.steps), sys.stdout))
    if checked.kind == "log" and not checked.trainer:
        _report_stranger(log, checked.lines, as_json=as_json)


def _report_stranger(log: Path, lines: int, *, as_json: bool) -> None:
    """End with exit code 4, as for a log in which `diagnose` knows nothing."""
    if not as_json:
        raise UserError(
            what=f"no profile takes a line of it ({lines} lines)",
            where=str(log),
            why="no profile describes the trainer, or the log has only progress bars, which look alike everywhere",
            fix="write in run.toml how a step looks: command.progress.log = '''step (?P<step>\\d+)'''",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    raise typer.Exit(ExitCode.OUT_OF_REACH)


def _find(name: str, where: str) -> TrainerProfile:
    profiles = trainer_profiles()
    if name in profiles:
        return profiles[name]
    meant = nearest(name, profiles)
    raise UserError(
        what=f"no profile is called {name}",
        where=where,
        why=f"did you mean {meant}?" if meant else f"the profiles: {', '.join(profiles)}",
        fix=f"prime-train trainers show {meant}" if meant else "prime-train trainers list",
    )
