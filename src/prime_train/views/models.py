"""Makes the documents of tested models and of the verdict on a model, and their text. Checks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from prime_train.models.verdict.verdicts import LABELS, ModelVerdict, Outcome
from prime_train.registry.models import TestedModel, vllm_architectures, vllm_gone
from prime_train.views.findings import plain
from prime_train.views.text import Paint, sanitize

HEADER = ("MODEL", "PRIME-RL", "USED FOR", "VLLM", "TOOL PARSER", "ISSUES")


def models_json(models: Iterable[TestedModel]) -> dict[str, Any]:
    """The document of `models list --json` and `models show --json`."""
    return {
        "version": 1,
        "models": [asdict(model) | {"vllm_known": _vllm_versions(model) or None} for model in models],
    }


def _vllm_versions(model: TestedModel) -> str:
    """The versions of vLLM that support the architecture, else the version the model was run with, else ""."""
    span = vllm_architectures().known.get(model.architecture)
    if span is None:
        return model.vllm
    gone = vllm_gone(model.architecture) or span.last
    return f"{span.first} to {gone}" if span.last else f"{span.first}+"


def as_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per model of the document under HEADER; "-" where no source has the value."""
    return [
        (
            model["name"],
            " ".join(model["prime_rl"]) or "-",
            " ".join(model["uses"]) or ("benchmark" if model["measured"] else "-"),
            model["vllm_known"] or "-",
            model["tool_parser"] or "-",
            str(len(model["issues"]) or "-"),
        )
        for model in document["models"]
    ]


def as_lines(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line of `models show MODEL`, from one model of the document, without unknown values."""
    vllm = model["vllm_known"] or ""
    lines = [
        ("architecture", model["architecture"]),
        ("prime-rl", ", ".join(model["prime_rl"])),
        ("used for", ", ".join(model["uses"])),
        ("measured", "\n".join(model["measured"])),
        ("vLLM", f"{vllm}, among the versions compared" if model["architecture"] and vllm else vllm),
        ("run with", f"vLLM {model['vllm']}" if model["vllm"] else ""),
        ("tool parser", f"--tool-call-parser {model['tool_parser']}" if model["tool_parser"] else ""),
        ("reasoning", f"--reasoning-parser {model['reasoning_parser']}" if model["reasoning_parser"] else ""),
    ]
    for issue in model["issues"]:
        text = f"{issue['what']}\nfix: {issue['fix']}\nsource: {issue['source']} ({issue['as_of']})"
        lines.append((f"issue, {issue['where']}", text))
    lines += [("sources", "\n".join(model["sources"])), ("as of", model["as_of"])]
    return [(label, text) for label, text in lines if text]


_STYLES = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.NOT_KNOWN: "cyan", Outcome.FAILURE: "red"}
_WORD_WIDTH = max(len(outcome) for outcome in Outcome)


def verdict_json(verdict: ModelVerdict) -> dict[str, Any]:
    """The document of `verify-model --json`."""
    return {
        "version": 1,
        "model": verdict.model,
        "origin": verdict.origin,
        "revision": verdict.revision or None,
        "usable": verdict.usable,
        "uses": {
            use.id: {"outcome": use.outcome, "what": use.what, "fix": use.fix or None, "because": list(use.because)}
            for use in verdict.uses
        },
        "checks": [check._asdict() | {"why": check.why or None, "fix": check.fix or None} for check in verdict.checks],
        "numbers": dict(verdict.numbers),
    }


def verdict_text(document: Mapping[str, Any], paint: Paint = plain) -> str:
    """A line per check, with why and fix if it did not pass; then a line per use."""
    revision = document["revision"]
    origin = document["origin"] + (f", revision {revision[:12]}" if revision else "")
    width = max(len(check["id"]) for check in document["checks"])
    blocks = [paint(sanitize(document["model"]), "bold") + paint(f"  ({origin})", "dim")]
    blocks += [_check(check, width, paint) for check in document["checks"]]
    blocks.append("")
    width = max(len(LABELS[use]) for use in document["uses"])
    blocks += [_use(f"{LABELS[use]:<{width}}", found, paint) for use, found in document["uses"].items()]
    return "\n".join(blocks)


def _check(check: Mapping[str, Any], width: int, paint: Paint) -> str:
    word = paint(f"{check['outcome']:<{_WORD_WIDTH}}", _STYLES[check["outcome"]])
    lines = [f"  {word}  {check['id']:<{width}}  {_one_line(check['what'])}"]
    indent = " " * (width + _WORD_WIDTH + 6)
    lines += [
        f"{indent}{paint(f'{name:<3}', 'dim')}  {_one_line(check[name])}" for name in ("why", "fix") if check[name]
    ]
    return "\n".join(lines)


def _use(label: str, use: Mapping[str, Any], paint: Paint) -> str:
    line = f"{label}  {paint(use['what'], _STYLES[use['outcome']])}"
    return f"{line}\n{' ' * len(label)}  {paint('fix', 'dim')}  {_one_line(use['fix'])}" if use["fix"] else line


def _one_line(text: str) -> str:
    return sanitize(text).replace("\n", " ")
