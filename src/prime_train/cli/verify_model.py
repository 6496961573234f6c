"""`prime-train verify-model`: does a model work, for what, and what is to be done. Downloads no weights."""

import sys
from typing import Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode, UserError


def verify_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A name on the Hugging Face hub, or a local folder.")],
    vllm: Annotated[
        str, typer.Option("--vllm", metavar="VERSION", help="Judge for that vLLM, by the table.", show_default=False)
    ] = "",
    revision: Annotated[
        str, typer.Option("--revision", metavar="REV", help="A branch, a tag or a commit.", show_default=False)
    ] = "",
    offline: Annotated[bool, typer.Option("--offline", help="Open no socket: use the local cache.")] = False,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="GPU", help="Reckon memory for that type of GPU.")
    ] = "h100-80gb",
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The interpreter that the run will use.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Look at a model before a run does: can it be read, trained, served; do its chat template and its tools work.

    Reads its small files and the headers of its weights. Exit code 1 where it can be used for nothing, 2 where there
    is no such model, 4 where the hub cannot be reached.

    Examples:

      prime-train verify-model Qwen/Qwen3-4B-Instruct-2507

      prime-train verify-model Qwen/Qwen3-0.6B --vllm 0.22.0 --offline

      prime-train verify-model ./checkpoints/exported --json
    """
    import tempfile
    from pathlib import Path

    from prime_train.cli.render import paint
    from prime_train.estimate import hardware
    from prime_train.facts.model_evidence import evidence
    from prime_train.facts.model_source import Refused
    from prime_train.verify.known import Stack
    from prime_train.verify.model import judge
    from prime_train.verify.refusal import refusal
    from prime_train.views import model_verdict as view

    _check_version(vllm)
    target = hardware.hardware_from_name(gpus)
    with tempfile.TemporaryDirectory(prefix="prime-train-") as scratch:
        found = evidence(model, Path(scratch), python or sys.executable, revision=revision, offline=offline)
    if isinstance(found, Refused):
        raise refusal(model, found)
    verdict = judge(found, Stack(found.installed, vllm), target)
    if as_json:
        import json

        print(json.dumps(view.as_json(verdict), indent=1, ensure_ascii=False))  # noqa: T201 - the result goes to stdout
    else:
        print(view.full(verdict, lambda text, style: paint(text, style, sys.stdout)))  # noqa: T201 - the result
    if not verdict.usable:
        raise typer.Exit(ExitCode.FINDINGS)


def _check_version(version: str) -> None:
    from packaging.version import InvalidVersion, Version

    from prime_train.model_registry import vllm_architectures

    if not version:
        return
    known = vllm_architectures().versions
    try:
        Version(version)
    except InvalidVersion:
        raise UserError(
            f"{version!r} is no version", "--vllm", f"the table has {known[0]} to {known[-1]}", f"--vllm {known[-1]}"
        ) from None
