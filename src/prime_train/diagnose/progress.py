"""Finds lines that show progress: a failure that is followed by progress did not end the process. Pure."""

from __future__ import annotations

import re

from prime_train.diagnose.screen import holds_any

ENOUGH_PROGRESS = 2
# A pattern is tried only on a lower-case line that holds one of these words.
_holds_sign = holds_any(('" 20', "throughput", "step", "loss", "finished", "complete"))
_PATTERNS = (
    (re.compile(r'"post /[^"\n]{1,200}" 20\d'), ENOUGH_PROGRESS),
    (re.compile(r"avg generation throughput: (?!0\.0\b)\d"), ENOUGH_PROGRESS),
    (
        re.compile(r"^.{0,80}\b(?:trainer|orchestrator|training|run)(?: is| has)? (?:finished|completed?)\b"),
        ENOUGH_PROGRESS,
    ),
    (re.compile(r"\b(?:step|iter(?:ation)?)\b[ :=#/\[]{1,4}\d+\b.{0,200}?\b(?:loss|reward|tokens?|time|lr|mfu)\b"), 1),
    (re.compile(r"""['"]loss['"]: ['"]?-?\d"""), 1),
)
_NOT_FINITE = re.compile(r"\bnan\b")


def measure_progress(lowered: str) -> int:
    """How strongly a lower-case line shows that the process works: from 0, not at all, to ENOUGH_PROGRESS."""
    if not _holds_sign(lowered):
        return 0
    head = lowered[:1000]
    if _NOT_FINITE.search(head):
        return 0
    return max((weight for pattern, weight in _PATTERNS if pattern.search(head)), default=0)
