"""Finds the lines worth scanning: those with one of several hundred words, and no repetitions. Parses nothing.

Python's `re` tries each word at each position: 80 s for 100 MB. The regex engine of pydantic-core searches for all
words at once in linear time, and pydantic is a dependency anyway. Measured: bench/diagnose.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pydantic_core import SchemaValidator, core_schema

_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$#&~-])")

# Lines that are scanned although no signature has their words: tracebacks and unknown errors.
ERRORS = (
    r"traceback \(most recent call last",
    r"^[^a-z\n]{0,60}\b(?:error|critical|fatal|exception)\b",  # a level after a time
    r"\berror \d\d-\d\d ",  # after the process, as vLLM writes it
    r"[-|\[(]\s{0,9}(?:error|critical|fatal)\s{0,9}[-|\])]",
    r"\be\d{3,4} \d\d:",
    r'"(?:error|critical|fatal)"',
    r"^\S{0,80}(?:error|exception)(?::|$)",
)


def holds_any(literals: Iterable[str], patterns: Iterable[str] = ()) -> Callable[[str], bool]:
    """A function that checks whether a lower-case text holds one of the literals or matches one of the simple
    patterns; ^ and $ match at line ends."""
    # Two searches: as one, the automaton outgrows its cache on texts without words (base64, hexadecimal), and then
    # runs at a thousandth of its speed.
    words = _search(_SPECIAL.sub(r"\\\1", literal) for literal in sorted(set(literals)))
    rules = _search(patterns)
    if words is None or rules is None:
        return words or rules or (lambda _: False)
    return lambda text: words(text) or rules(text)


def _search(alternatives: Iterable[str]) -> Callable[[str], bool] | None:
    any_of = "|".join(alternatives)
    if not any_of:
        return None
    schema = core_schema.str_schema(pattern=f"(?m){any_of}", regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python


is_error = holds_any((), ERRORS)


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
