"""Applies the patches of findings to a config's text. No I/O.

A patch is kept only if the text still parses, has the patched values, and has no more errors than before; a renamed key
only if the text is still for the same command. Patches of unrelated keys are applied together; if that fails, one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prime_train.config.parsed_config import OTHER_GENERATION
from prime_train.core.findings import Finding, Severity
from prime_train.rules.judge import Verdict
from prime_train.toml.edit import EditRefused, edited

Judge = Callable[[str], Verdict]
_MAX_ROUNDS = 12  # a fix may uncover another finding: a renamed table, then its keys
_MAX_ALONE = 100  # patches that are tried one by one; each costs a judgement


class Fixed(NamedTuple):
    """The text with its verdict, the findings that were fixed, and those whose patch could not be applied."""

    text: str
    verdict: Verdict
    applied: tuple[Finding, ...]
    refused: tuple[Finding, ...]


def fix_text(text: str, judge: Judge, selected: Callable[[Verdict], Verdict] = lambda verdict: verdict) -> Fixed:
    """The text with every patch that helps. `judge` returns the verdict on a text, `selected` the part of it to fix."""
    state = Fixed(text, judge(text), (), ())
    tried: set[tuple[str, str, str]] = set()
    alone_left = _MAX_ALONE
    for _ in range(_MAX_ROUNDS):
        found = selected(state.verdict).findings
        open_ = [finding for finding in found if _is_here(finding, state.verdict) and _id(finding) not in tried]
        batch = _choose_unrelated(open_)
        if not batch:
            break
        tried.update(_id(finding) for finding in batch)
        together = _try(state, batch, judge)
        if together is not None:
            state = together
            continue
        for finding in batch[:alone_left]:
            state = _try(state, [finding], judge) or state._replace(refused=(*state.refused, finding))
        state = state._replace(refused=(*state.refused, *batch[alone_left:]))
        alone_left = max(0, alone_left - len(batch))
    return state


def _try(state: Fixed, findings: list[Finding], judge: Judge) -> Fixed | None:
    """The state with these patches applied, or None.

    None if one cannot be applied, if the text has more errors, or if it is for another command, where a renamed key has
    another replacement.
    """
    text = state.text
    try:
        for finding in findings:
            text = _edit(text, finding, state.verdict)
    except EditRefused:
        return None
    verdict = judge(text)
    if _errors(verdict) > _errors(state.verdict):
        return None
    if verdict.root != state.verdict.root and any(finding.code == OTHER_GENERATION for finding in findings):
        return None
    return state._replace(text=text, verdict=verdict, applied=(*state.applied, *findings))


def _is_here(finding: Finding, verdict: Verdict) -> bool:
    """Whether the patch of a finding is for the judged text, and not for a file that it points to."""
    return bool(finding.patch) and (not verdict.is_yaml or finding.path == verdict.path)


def _edit(text: str, finding: Finding, verdict: Verdict) -> str:
    if verdict.is_yaml:
        from prime_train.config.foreign.edit import edited_yaml  # here, because most configs are TOML

        return edited_yaml(text, verdict.path, finding.patch)
    return edited(text, finding.patch)


def _choose_unrelated(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, in order, whose patches change no key of an earlier patch, nor one above or below it."""
    touched: list[tuple[str, ...]] = []
    chosen: list[Finding] = []
    for finding in findings:
        keys = [tuple(key.split(".")) for key in finding.patch]
        if not any(_overlap(key, other) for key in keys for other in touched):
            touched.extend(keys)
            chosen.append(finding)
    return chosen


def _overlap(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    shared = min(len(a), len(b))
    return a[:shared] == b[:shared]


def _errors(verdict: Verdict) -> int:
    return sum(finding.severity is Severity.ERROR for finding in verdict.findings)


def _id(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.key, repr(dict(finding.patch))
