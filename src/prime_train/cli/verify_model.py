"""`prime-train verify-model`: does a model work, for what, and what is to be done. Downloads no weights."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.errors import ExitCode, UserError

if TYPE_CHECKING:
    from prime_train.facts.model_source import Refused


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
    from prime_train.views import model_verdict as view

    _check_version(vllm)
    target = hardware.of_name(gpus)
    with tempfile.TemporaryDirectory(prefix="prime-train-") as scratch:
        found = evidence(model, Path(scratch), python or sys.executable, revision=revision, offline=offline)
    if isinstance(found, Refused):
        raise _refusal(model, found)
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


def _refusal(model: str, refused: "Refused") -> UserError:
    """The error for a model that could not be had: a wrong name, a right that is missing, or no answer."""
    from prime_train.facts.model_source import Fault

    code, why, fix = {
        Fault.BAD_NAME: (ExitCode.USAGE, "a name on the hub is name or owner/name", _nearest(model)),
        Fault.MISSING: (ExitCode.USAGE, "the hub has no model of that name, or no such revision", _nearest(model)),
        Fault.LOGIN: (
            ExitCode.FINDINGS,
            "it is private, or it is not there: the hub says the same of both to who is not logged in",
            f"hf auth login, or {_nearest(model)}",
        ),
        Fault.BAD_TOKEN: (
            ExitCode.FINDINGS,
            "the token in HF_TOKEN or in the token file does not hold",
            "hf auth login",
        ),
        Fault.GATED: (
            ExitCode.FINDINGS,
            "its authors give it only to who has accepted their terms",
            f"accept them at https://huggingface.co/{model}, then hf auth login",
        ),
        Fault.FORBIDDEN: (
            ExitCode.FINDINGS,
            "the token lacks the right to read it",
            "make a token that may read gated and private repositories: https://huggingface.co/settings/tokens",
        ),
        Fault.RATE_LIMITED: (
            ExitCode.OUT_OF_REACH,
            "too many requests came from here",
            "wait five minutes, or hf auth login",
        ),
        Fault.SERVER: (
            ExitCode.OUT_OF_REACH,
            "the hub itself has a fault",
            "try again; status.huggingface.co tells more",
        ),
        Fault.TIMEOUT: (ExitCode.OUT_OF_REACH, "no answer came in time", "try again, or --offline with what is cached"),
        Fault.NOT_HUB: (
            ExitCode.OUT_OF_REACH,
            "a proxy or a portal answers in its place",
            "check HF_ENDPOINT and the proxy, or --offline",
        ),
        Fault.TRUNCATED: (ExitCode.OUT_OF_REACH, "fewer bytes came than were announced", "try again: the line broke"),
        Fault.NOT_CACHED: (
            ExitCode.OUT_OF_REACH,
            "--offline or HF_HUB_OFFLINE keeps us from asking the hub",
            f"hf download {model}, then try again",
        ),
        Fault.UNREADABLE: (ExitCode.USAGE, "the folder cannot be read", "check its rights: ls -ld"),
    }.get(refused.fault, (ExitCode.OUT_OF_REACH, "the hub is out of reach", "check the network, or --offline"))
    return UserError(refused.detail or str(refused.fault), f"verify-model {model}", why, fix, code)


def _nearest(model: str) -> str:
    from prime_train.dialects.nearest import nearest
    from prime_train.model_registry import tested_models

    meant = nearest(model, tested_models())
    return f"did you mean {meant}?" if meant and meant != model else "check the name: prime-train models list"
