"""`prime-train init`: writes a config for a model and a machine, or a workflow. Replaces nothing unasked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.init import github_actions as workflow
from prime_train.cli.init.answers import list_models
from prime_train.cli.init.flags import Flags
from prime_train.cli.init.preview import propose
from prime_train.cli.init.verdict import describe_model
from prime_train.cli.terminal.options import AsJson, NoColor, Offline
from prime_train.cli.terminal.output import print_json, write_file
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES


def complete_model(incomplete: str) -> list[str]:
    """The known models that start with `incomplete`, for shell completion."""
    return [name for name in list_models() if name.lower().startswith(incomplete.lower())]


def _option(name: str, help_: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help_, metavar=metavar, show_default=False)


def init(
    task: Annotated[str | None, _option("--task", "What is trained: pretrain, sft, rl or audio.", "TASK")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="A folder, or a name on the hub.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        str | None, _option("--gpus", "1xrtx4090, 2x8xh100 (two machines), here, or cheapest.", "GPUS")
    ] = None,
    env: Annotated[str | None, _option("--env", "The environment of rl.", "NAME")] = None,
    turns: Annotated[str | None, _option("--turns", "How many answers a rollout has: single or multi.")] = None,
    tools: Annotated[str | None, _option("--tools", "Where its tools run: none, local, sandbox, service.")] = None,
    data: Annotated[str | None, _option("--data", "A file, a folder, a glob, or a dataset on the hub.", "PATH")] = None,
    subset: Annotated[str, _option("--subset", "The configuration of a dataset on the hub.")] = "",
    trainer: Annotated[
        str, typer.Option("--trainer", help="auto, bundled, prime-rl, a generation of it such as 2026-08, or command.")
    ] = "auto",
    command: Annotated[
        str | None, _option("--command", "--trainer command: what starts a trainer of yours.", "COMMAND")
    ] = None,
    lora: Annotated[
        bool | None, typer.Option("--lora/--full", help="An adapter or all weights. Default: what fits.")
    ] = None,
    ctx_tokens: Annotated[int | None, typer.Option("--ctx-tokens", min=64, help="Tokens of a sequence.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of the run.")] = None,
    budget_usd: Annotated[float | None, typer.Option("--budget-usd", min=0, help="The most that it may cost.")] = None,
    budget_hours: Annotated[float | None, typer.Option("--budget-hours", min=0, help="The longest time.")] = None,
    interruptions_per_day: Annotated[
        float | None,
        typer.Option("--interruptions-per-day", min=0, help="How often machines stop. Default: a usual rate."),
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot", help="On spot machines: their prices, and how often they stop.")
    ] = False,
    name: Annotated[str | None, _option("--name", "The name of the run.")] = None,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file to write.")] = Path("run.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    github_actions: Annotated[
        bool, typer.Option("--github-actions", help="The workflow that polls a run and resumes it.")
    ] = False,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="PATH", help="--github-actions: a folder of the repository.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that differs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = False,
    offline: Offline = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Write a config for a model and a machine, with sizes that fit and the reason for each.

    What is not given is asked for in a terminal. The estimator chooses the layout, the micro-batch, an adapter or all
    weights, the part of the engine and the steps of the budget. A file with an error, or one that does not fit, is
    never written. Exit code 1: nothing fits, or a file is there that differs.

    Examples:

      prime-train init

      prime-train init --task rl --model Qwen/Qwen3-4B --gpus 1xrtx4090 --env reverse-text --yes

      prime-train init --task sft --model Qwen/Qwen3-8B --gpus cheapest --data chats.jsonl --budget-usd 50 --yes

      prime-train init --task audio --data clips/ --yes

      prime-train init --github-actions --dry-run
    """
    if github_actions:
        workflow.write_workflow(directory, force=force, dry_run=dry_run)
        return
    flags = Flags(task, trainer, command, model, gpus, env, turns, tools, data, subset, lora, ctx_tokens, steps,
                  budget_usd, budget_hours, interruptions_per_day, spot, name, offline)  # fmt: skip
    flags.refuse()
    path = str(output)
    can_ask = not (yes or as_json or command is not None) and sys.stdin.isatty() and sys.stderr.isatty()
    if can_ask:
        from prime_train.cli.init.conversation import converse  # here, because questionary is slow to import

        proposal = converse(flags, lambda flags: propose(flags, path))
    else:
        _refuse_missing(flags, yes=yes or as_json or command is not None)
        if flags.model is not None:
            typer.echo(describe_model(flags.model, offline=offline), err=True)
        proposal = propose(flags, path)
        typer.echo(f"{proposal.shown}\n", err=True)
    if as_json:
        print_json(proposal.document)
    _write(output, proposal.text, force=force, dry_run=dry_run, shows=not (as_json or can_ask))
    if not dry_run:
        typer.echo(proposal.next_steps, err=True)


def _refuse_missing(flags: Flags, *, yes: bool) -> None:
    """Raise UserError for flags that are missing where nothing can be asked."""
    missing = flags.missing()
    if yes and not missing:
        return
    shown = ", ".join([*missing, *([] if yes else ["--yes"])])
    raise UserError(
        what=f"missing: {shown}",
        where="prime-train init",
        why="nothing is asked with --yes or --json" if yes else "this is no terminal, so nothing can be asked",
        fix="give them, as `prime-train init --help` shows; or prime-train init --github-actions for a workflow",
    )


def _write(output: Path, text: str, *, force: bool, dry_run: bool, shows: bool = True) -> None:
    """Print the config, and write it unless it is a dry run. Raises UserError for another file, without `force`."""
    if shows:
        typer.echo(text, nl=False)
    if dry_run:
        return
    refuse_existing(output, text, force=force)
    write_file(output, text, makes_folders=True)
    typer.echo(f"written: {output}", err=True)


def refuse_existing(output: Path, text: str, *, force: bool) -> None:
    """Raise UserError if another file, a link or a folder has the name."""
    if not os.path.lexists(output):
        return
    is_file = output.is_file() and not output.is_symlink()
    if is_file and (force or outside.read_bytes(output, CONFIG_BYTES) == text.encode()):
        return
    raise UserError(
        what="a file is there that differs" if is_file else "something that is no plain file is there",
        where=str(output),
        why="what you wrote would be lost" if is_file else "only a plain file is replaced",
        fix="--output with another name" + ("; --force replaces it" if is_file else ""),
        exit_code=ExitCode.FINDINGS,
    )
