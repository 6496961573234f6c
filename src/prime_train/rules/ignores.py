"""Silences findings by comments in the file, and finds the comments that silence nothing. No I/O.

`# prime-train: ignore[BAT001]` holds on the lines of what is found, or in the whole file where it stands
above the first key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prime_train.dialects.reading import Fault, Reading
from prime_train.document import Comment, Document
from prime_train.findings import Finding, Severity, Span
from prime_train.rules.base import RULES, file_rule

UNUSED = "IGN001"
_MARK = "ignore["  # what is looked for before anything is parsed
_COMMENT = r"#\s*prime-train:\s*ignore\[([A-Za-z0-9, ]*)\]"


class Silenced(NamedTuple):
    """The findings that no comment silences, and the codes of those that one does."""

    kept: list[Finding]
    ignored: tuple[str, ...]


class _Ignore(NamedTuple):
    """One code in one comment."""

    code: str
    comment: Comment
    span: Span


@file_rule(UNUSED, Severity.WARNING)
def unused_ignore(_: Reading) -> Iterator[Fault]:
    """An ignore comment must silence something.

    it hides the finding that comes back one day, and tells a reader of a fault that is not there

    Source: ruff, RUF100 (a noqa that silences nothing is told too).

    Bad:
        # prime-train: ignore[BAT001]
        [batch]
        micro_batch = 4
    Good:
        # prime-train: ignore[EVA001]
        [eval]
        interval_steps = 5000
    """
    return iter(())  # what the other rules find decides: `silence` yields these, once all have judged


def silence(found: Sequence[Finding], document: Document, judged: frozenset[str]) -> Silenced:
    """What is left of the findings, and the comments that silence none. `judged` are the rules that were asked."""
    if _MARK not in document.text or (document.fault is not None and not document.readable):
        return Silenced(list(found), ())
    from prime_train.rules import catalogue  # noqa: F401 - registers every rule: a code that none has is told

    ignores = list(_ignores(document))
    kept: list[Finding] = []
    used: set[_Ignore] = set()
    for finding in found:
        by = [ignore for ignore in ignores if _covers(ignore, finding)]
        used.update(by)
        if not by:
            kept.append(finding)
    if document.fault is None:
        unused = [ignore for ignore in ignores if ignore not in used and ignore.code in judged | {UNUSED}]
        unknown = [ignore for ignore in ignores if ignore.code not in RULES]
        told = [_unused(document, ignore) for ignore in (*unused, *unknown) if ignore.code != UNUSED]
        kept.extend(finding for finding in told if not any(_covers(ignore, finding) for ignore in ignores))
    return Silenced(kept, tuple(sorted({ignore.code for ignore in used})))


def _ignores(document: Document) -> Iterator[_Ignore]:
    for comment in document.comments():
        for match in re.finditer(_COMMENT, comment.text):
            span = Span(comment.line, comment.column + match.start(), comment.line, comment.column + match.end())
            for code in dict.fromkeys(code.strip().upper() for code in match.group(1).split(",")):
                if code:
                    yield _Ignore(code, comment, span)


def _covers(ignore: _Ignore, finding: Finding) -> bool:
    on_a_line = finding.span.line <= ignore.comment.line <= finding.span.end_line
    return ignore.code == finding.code and (ignore.comment.on_top or on_a_line)


def _unused(document: Document, ignore: _Ignore) -> Finding:
    known = ignore.code in RULES
    where = "in the file" if ignore.comment.on_top else "on its line"
    return Finding(
        code=UNUSED,
        severity=Severity.WARNING,
        path=document.path,
        span=ignore.span,
        key="",
        field="",
        what=f"ignore[{ignore.code}] silences nothing: "
        + (f"{ignore.code} finds nothing {where}" if known else "no rule has that code"),
        why="it hides the finding that comes back one day, and tells a reader of a fault that is not there",
        fix=f"take {ignore.code} out of the comment" if known else "prime-train rule lists the codes",
    )
