"""Tells lines that show work being done: what a process outlived is not why it ended. Pure."""

from __future__ import annotations

import re

from prime_train.diagnose.screen import holds_any

ENOUGH = 2
# What a line must hold, in lower case, before a pattern is tried on it.
_holds_sign = holds_any(('" 20', "throughput", "step", "loss", "finished", "complete"))
_PATTERNS = (
    (re.compile(r'"post /[^"\n]{1,200}" 20\d'), ENOUGH),
    (re.compile(r"avg generation throughput: (?!0\.0\b)\d"), ENOUGH),
    (re.compile(r"^.{0,80}\b(?:trainer|orchestrator|training|run)(?: is| has)? (?:finished|completed?)\b"), ENOUGH),
    (re.compile(r"\b(?:step|iter(?:ation)?)\b[ :=#/\[]{1,4}\d+\b.{0,200}?\b(?:loss|reward|tokens?|time|lr|mfu)\b"), 1),
    (re.compile(r"""['"]loss['"]: ['"]?-?\d"""), 1),
)
_NOT_FINITE = re.compile(r"\bnan\b")


def progress(lowered: str) -> int:
    """How much a line, in lower case, says for the process being well: 0 nothing, ENOUGH all that is wanted."""
    if not _holds_sign(lowered):
        return 0
    head = lowered[:1000]
    if _NOT_FINITE.search(head):
        return 0
    return max((weight for pattern, weight in _PATTERNS if pattern.search(head)), default=0)
