"""Renders the verdict on a model as text or JSON. Prints nothing, checks nothing."""

from __future__ import annotations

from typing import Any

from prime_train.verify.check import Check, Outcome, Use, Verdict
from prime_train.verify.uses import label
from prime_train.views.findings import Paint, plain
from prime_train.views.printable import sanitize

_STYLES = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.NOT_KNOWN: "cyan", Outcome.FAILURE: "red"}
_WORD_WIDTH = max(len(outcome) for outcome in Outcome)


def verdict_text(verdict: Verdict, paint: Paint = plain) -> str:
    """A line per check, with why and fix if it did not pass; then a line per use."""
    origin = verdict.origin + (f", revision {verdict.revision[:12]}" if verdict.revision else "")
    width = max(len(check.id) for check in verdict.checks)
    blocks = [paint(sanitize(verdict.model), "bold") + paint(f"  ({origin})", "dim")]
    blocks += [_check(check, width, paint) for check in verdict.checks]
    blocks.append("")
    width = max(len(label(use.id)) for use in verdict.uses)
    blocks += [_use(use, width, paint) for use in verdict.uses]
    return "\n".join(blocks)


def _check(check: Check, width: int, paint: Paint) -> str:
    word = paint(f"{check.outcome:<{_WORD_WIDTH}}", _STYLES[check.outcome])
    lines = [f"  {word}  {check.id:<{width}}  {_one_line(check.what)}"]
    indent = " " * (width + _WORD_WIDTH + 6)
    lines += [
        f"{indent}{paint(f'{name:<3}', 'dim')}  {_one_line(text)}"
        for name, text in (("why", check.why), ("fix", check.fix))
        if text
    ]
    return "\n".join(lines)


def _use(use: Use, width: int, paint: Paint) -> str:
    line = f"{label(use.id):<{width}}  {paint(use.what, _STYLES[use.outcome])}"
    return f"{line}\n{' ' * width}  {paint('fix', 'dim')}  {_one_line(use.fix)}" if use.fix else line


def _one_line(text: str) -> str:
    return sanitize(text).replace("\n", " ")


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The document of `verify-model --json`."""
    return {
        "version": 1,
        "model": verdict.model,
        "origin": verdict.origin,
        "revision": verdict.revision or None,
        "usable": verdict.usable,
        "uses": {
            use.id: {
                "outcome": str(use.outcome),
                "what": use.what,
                "fix": use.fix or None,
                "because": list(use.because),
            }
            for use in verdict.uses
        },
        "checks": [
            {
                "id": check.id,
                "outcome": str(check.outcome),
                "what": check.what,
                "why": check.why or None,
                "fix": check.fix or None,
            }
            for check in verdict.checks
        ],
        "numbers": dict(verdict.numbers),
    }
