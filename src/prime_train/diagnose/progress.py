"""Tells lines that show work being done: what a process outlived is not why it ended. Pure."""

from __future__ import annotations

import re

ENOUGH = 2
# What a line must hold, in lower case and without digits, before a pattern is tried on it.
_SIGNS = (b'"  ok', b"throughput", b"step", b"loss", b"finished", b"complete")
_PATTERNS = (
    (re.compile(rb'"post /[^"\n]{1,200}" 20\d'), ENOUGH),
    (re.compile(rb"avg generation throughput: (?!0\.0\b)\d"), ENOUGH),
    (re.compile(rb"^.{0,80}\b(?:trainer|orchestrator|training|run)(?: is| has)? (?:finished|completed?)\b"), ENOUGH),
    (re.compile(rb"\b(?:step|iter(?:ation)?)\b[ :=#/\[]{1,4}\d+\b.{0,200}?\b(?:loss|reward|tokens?|time|lr|mfu)\b"), 1),
    (re.compile(rb"""['"]loss['"]: ['"]?-?\d"""), 1),
)
_NOT_FINITE = re.compile(rb"\bnan\b")


def progress(line: bytes, key: bytes) -> int:
    """How much the line says for the process being well: 0 nothing, ENOUGH all that is wanted.

    `key` is the line without digits (screen.key).
    """
    if not any(sign in key for sign in _SIGNS):
        return 0
    lowered = line[:1000].lower()
    if _NOT_FINITE.search(lowered):
        return 0
    return max((weight for pattern, weight in _PATTERNS if pattern.search(lowered)), default=0)
