"""Renders tested models and the verdict on a model, as text or JSON. Prints nothing, checks nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from prime_train.model_registry import TestedModel, vllm_architectures, vllm_gone

HEADER = ("MODEL", "PRIME-RL", "USED FOR", "VLLM", "TOOL PARSER", "ISSUES")


def as_rows(models: Iterable[TestedModel]) -> list[tuple[str, ...]]:
    """One row per model under HEADER; "-" where no source has the value."""
    return [
        (
            model.name,
            " ".join(model.prime_rl) or "-",
            " ".join(model.uses) or ("benchmark" if model.measured else "-"),
            vllm_versions(model) or "-",
            model.tool_parser or "-",
            str(len(model.issues)) if model.issues else "-",
        )
        for model in models
    ]


def vllm_versions(model: TestedModel) -> str:
    """The versions of vLLM that support the architecture, else the version the model was run with, else ""."""
    span = vllm_architectures().known.get(model.architecture)
    if span is None:
        return model.vllm
    gone = vllm_gone(model.architecture) or span.last
    return f"{span.first} to {gone}" if span.last else f"{span.first}+"


def as_lines(model: TestedModel) -> list[tuple[str, str]]:
    """Label and text of each line of `models show MODEL`; unknown values are left out."""
    vllm = vllm_versions(model)
    lines = [
        ("architecture", model.architecture),
        ("prime-rl", ", ".join(model.prime_rl)),
        ("used for", ", ".join(model.uses)),
        ("measured", "\n".join(model.measured)),
        ("vLLM", f"{vllm}, among the versions compared" if model.architecture and vllm else vllm),
        ("run with", f"vLLM {model.vllm}" if model.vllm else ""),
        ("tool parser", f"--tool-call-parser {model.tool_parser}" if model.tool_parser else ""),
        ("reasoning", f"--reasoning-parser {model.reasoning_parser}" if model.reasoning_parser else ""),
    ]
    for issue in model.issues:
        text = f"{issue.what}\nfix: {issue.fix}\nsource: {issue.source} ({issue.as_of})"
        lines.append((f"issue, {issue.where}", text))
    lines += [("sources", "\n".join(model.sources)), ("as of", model.as_of)]
    return [(label, text) for label, text in lines if text]


def models_json(models: Iterable[TestedModel]) -> dict[str, Any]:
    """The document of `models list --json` and `models show --json`."""
    return {
        "version": 1,
        "models": [asdict(model) | {"vllm_known": vllm_versions(model) or None} for model in models],
    }
