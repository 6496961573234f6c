"""`prime-train verify-model`: checks what a model can be used for, and how. Downloads no weights."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version

from prime_train.cli.terminal.options import AsJson, NoColor, Offline, Python
from prime_train.cli.terminal.render import fit_terminal, json_text, painter
from prime_train.config import detect
from prime_train.config.foreign.model_sizes import named_model
from prime_train.config.foreign.recipe.draft import to_recipe
from prime_train.config.foreign.values import SUFFIXES
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate import hardware
from prime_train.models.read.architectures import read_installed
from prime_train.models.read.evidence import gather_evidence
from prime_train.models.read.model_files import RefusedRead
from prime_train.models.read.read_files import access_error
from prime_train.models.verdict.judge import judge, judge_unreached
from prime_train.models.verdict.support import Stack
from prime_train.models.verdict.verdicts import ModelVerdict
from prime_train.registry.models import vllm_architectures
from prime_train.spec.answers import model_name
from prime_train.views import models as view


def verify_model(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name on the Hugging Face hub, a local folder, or a config.")
    ],
    vllm: Annotated[
        str,
        typer.Option("--vllm", metavar="VERSION", help="The vLLM to judge for.", show_default=False),
    ] = "",
    revision: Annotated[
        str, typer.Option("--revision", metavar="REV", help="A branch, a tag or a commit.", show_default=False)
    ] = "",
    offline: Offline = False,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="GPU", help="Estimate memory for this type of GPU.")
    ] = "h100-80gb",
    python: Python = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Check whether a model can be read, trained and served, and whether its chat template and tools work.

    Reads its small files and the headers of its weights. Exit code 1: the model cannot be used for anything, or its
    files are damaged, 2: there is no such model, 4: the hub cannot be reached; what the registry knows is shown.

    Examples:

      prime-train verify-model Qwen/Qwen3-4B-Instruct-2507

      prime-train verify-model Qwen/Qwen3-0.6B --vllm 0.22.0 --offline

      prime-train verify-model ./checkpoints/exported --json
    """
    _check_version(vllm)
    model = model_of_config(model) if _names_a_config(model) else model
    target = hardware.hardware_from_name(gpus)
    with tempfile.TemporaryDirectory(prefix="prime-train-") as scratch:
        found = gather_evidence(model, Path(scratch), python or sys.executable, revision=revision, offline=offline)
    if isinstance(found, RefusedRead):
        error = access_error(model, found)
        if error.exit_code == ExitCode.OUT_OF_REACH:
            stack = Stack(read_installed(python or sys.executable), vllm)
            known = judge_unreached(model, found, stack, target)
            if known is not None and as_json:
                error.document = view.verdict_json(known)
            elif known is not None:
                _show(known, as_json=False)
        raise error
    verdict = judge(found, Stack(found.installed, vllm), target)
    _show(verdict, as_json=as_json)
    if not verdict.usable:
        raise typer.Exit(ExitCode.FINDINGS)


def _names_a_config(model: str) -> bool:
    """Whether a name is that of a file: one that is there, or that has the ending of a config and is no folder."""
    return Path(model).is_file() or (model.endswith((*SUFFIXES, ".toml")) and not Path(model).is_dir())


def model_of_config(config: str) -> str:
    """The model that a config trains or serves. Raises UserError if it names none."""
    reading = detect.read(*detect.read_config(config))
    draft = None if reading.foreign is None else to_recipe(reading.foreign)
    run = reading.run if draft is None else draft.run
    named = None if run is None else model_name(run)
    named = named or next(filter(None, map(named_model, reading.foreign or ())), None)  # of a server, for example
    if named is not None:
        return named
    raise UserError(
        what="no model is named",
        where=config,
        why="verify-model takes a model, or a config that names one",
        fix="prime-train verify-model Qwen/Qwen3-8B",
        exit_code=ExitCode.FINDINGS,
    )


def _show(verdict: ModelVerdict, *, as_json: bool) -> None:
    document = view.verdict_json(verdict)
    if as_json:
        typer.echo(json_text(document))
    else:
        typer.echo(fit_terminal(view.verdict_text(document, painter(sys.stdout)), sys.stdout))


def _check_version(version: str) -> None:
    if not version:
        return
    known = vllm_architectures().versions
    try:
        Version(version)
    except InvalidVersion:
        raise UserError(
            f"{version!r} is not a version", "--vllm", f"the table has {known[0]} to {known[-1]}", f"--vllm {known[-1]}"
        ) from None
