"""Finds lines that prove that a process works: its steps, its answers, the exit code 0 of its launcher. Pure.

No words prove it: "done" is what a batch script writes after a crash as well.
"""

from __future__ import annotations

import re

from prime_train.diagnose.prefilter import holds_any

ENOUGH_PROGRESS = 2
# A pattern is tried only on a lower-case line that holds one of these words.
PROGRESS_WORDS = (
    *('" 20', "throughput", "step", "loss", "train_runtime", "metrics", "it/s", "s/it", "iteration"),
    *("exit", "ended", "code", "status"),
)
_holds_sign = holds_any(PROGRESS_WORDS)
_ANSWERS = (
    re.compile(r'"post /[^"\n]{1,200}" 20\d'),
    re.compile(r"avg generation throughput: (?!0\.0\b)\d"),
    re.compile(r"['\"]train_runtime['\"]: "),  # the trainer computes it after its last step
)
_NUMBER = r"(?P<number>\d+)"
_STEPS = (
    # 820/1628 [08:51<08:30, 1.58it/s] of a progress bar
    re.compile(r"\b(?:epoch|train\w*|step|iter\w*)\b.{0,40}\d{1,3}%\|.{0,80}?(?P<bar>\d+)/\d+ \[.{0,80}(?:it/s|s/it)"),
    re.compile(
        rf"\b(?:step|iter(?:ation)?)\b[ :=#/\[]{{1,12}}{_NUMBER}\b.{{0,200}}?"
        r"(?:\b|_)(?:loss|reward|tokens?|time|lr|mfu)\b"
    ),
    re.compile(r"(?P<loss>['\"]loss['\"]: ['\"]?-?\d.{0,400})"),
    re.compile(r"(?P<metrics>\b(?:final|validation|eval\w*|test) metrics\b.{0,40}[:=].{0,80}\d)"),
)
_NOT_FINITE = re.compile(r"\bnan\b")
_EXIT_0 = re.compile(
    r"\b(?:exit(?:ed|ing)?|ended|terminated|finished|return(?:ed)?)(?: with)?(?: exit| return)? ?(?:code|status)"
    r"[ :=]{1,3}0\b(?![.:]?[1-9])|\b(?:exited|exiting|ended)(?: with)? 0\b(?![.:]?[1-9])"
)
# One of several processes, or a step of the scheduler, may end well although the run failed.
_OF_A_PART = re.compile(
    r"\b(?:worker|rank|local_rank|child|subprocess|raylet|thread|process \d+|pid|prolog|epilog\w*|hook|sidecar"
    r"|engine)\b"
    r"|unexpected|\bfail|\berror|\bif\b|\bnot\b"
)


def measure_progress(lowered: str) -> tuple[int, str]:
    """How strongly a lower-case line shows that the process works, and the step that it names.

    From 0, not at all, to ENOUGH_PROGRESS. A line that is written twice shows one step, so the step is needed.
    """
    if not _holds_sign(lowered):
        return 0, ""
    head = lowered[:1000]
    if _NOT_FINITE.search(head):
        return 0, ""
    if any(pattern.search(head) for pattern in _ANSWERS) or is_clean_exit(head):
        return ENOUGH_PROGRESS, ""
    found = next((found for pattern in _STEPS if (found := pattern.search(head))), None)
    return (0, "") if found is None else (1, f"{found.lastgroup} {found[found.lastgroup or 0]}")


def is_clean_exit(lowered: str) -> bool:
    """Whether the line reports that the program, and not a part of it, exited with 0."""
    return _EXIT_0.search(lowered) is not None and not _OF_A_PART.search(lowered)
