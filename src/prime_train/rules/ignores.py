"""Silences findings by comments in the file, and finds the comments that silence nothing. No I/O.

`# prime-train: ignore[BAT001]` holds on the lines of what is found, or in the whole file where it stands
above the first key.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from prime_train.core.findings import Finding, Severity, TextSpan
from prime_train.rules.explain import explain
from prime_train.rules.rule import RULES, reader_rule
from prime_train.toml.document import Comment, Document

UNUSED = "IGN001"
_MARK = "ignore["  # checked before the comments are parsed
_MAX_FINDINGS = 1000
_COMMENT = r"#\s*prime-train:\s*ignore\[([A-Za-z0-9, ]*)\]"


class _Ignore(NamedTuple):
    """One code in one comment."""

    code: str
    comment: Comment
    span: TextSpan


@reader_rule(UNUSED, Severity.WARNING)  # `silence` reports these, after all other rules have judged
def unused_ignore() -> None:
    """An ignore comment must silence something.

    it would hide the finding if it came back, and it names a fault that is not there

    Source: ruff, RUF100 (reports a noqa that silences nothing).

    Bad:
        # prime-train: ignore[BAT001]
        [batch]
        micro_batch = 4
    Good:
        # prime-train: ignore[EVA001]
        [eval]
        interval_steps = 5000
    """


def silence(
    found: Sequence[Finding], document: Document, judged: frozenset[str]
) -> tuple[list[Finding], tuple[str, ...]]:
    """The findings that no comment silences, and the codes of those that one does.

    A comment that silences nothing is a finding, too. `judged` are the codes of the rules that ran.
    """
    if _MARK not in document.text or (document.fault is not None and not document.readable):
        return list(found), ()
    from prime_train.rules.families import load_all

    load_all()  # because a code that no rule has is reported
    ignores = _Ignores(document)
    kept = [finding for finding in found if not ignores.cover(finding)]
    if document.fault is None:
        unused = (_unused(document, ignore) for ignore in ignores.unused(judged))
        kept.extend(islice((finding for finding in unused if not ignores.cover(finding)), _MAX_FINDINGS))
    return kept, tuple(sorted(ignores.used_codes()))


class _Ignores:
    """The ignore comments of a file by code, and which of them were used. A hostile file has thousands of them."""

    def __init__(self, document: Document) -> None:
        self._on_top: dict[str, list[_Ignore]] = {}
        self._by_line: dict[str, list[_Ignore]] = {}
        self._used: set[_Ignore] = set()
        self._used_on_top: set[str] = set()
        for ignore in _ignores(document):
            (self._on_top if ignore.comment.on_top else self._by_line).setdefault(ignore.code, []).append(ignore)

    def cover(self, finding: Finding) -> bool:
        """Whether a comment silences the finding; such comments count as used."""
        here = self._by_line.get(finding.code, [])
        first = bisect_left(here, finding.span.line, key=_line)
        beside = here[first : bisect_right(here, finding.span.end_line, key=_line)]
        self._used.update(beside)
        if finding.code in self._on_top:
            self._used_on_top.add(finding.code)
        return bool(beside) or finding.code in self._on_top

    def unused(self, judged: frozenset[str]) -> Iterator[_Ignore]:
        """Comments that silenced nothing although their rule ran, then those that name no rule."""
        left = [ignore for code, ignores in self._on_top.items() if code not in self._used_on_top for ignore in ignores]
        left += [ignore for ignores in self._by_line.values() for ignore in ignores if ignore not in self._used]
        left.sort(key=_line)
        yield from (ignore for ignore in left if ignore.code in judged and ignore.code != UNUSED)
        yield from (ignore for ignore in left if ignore.code not in RULES)

    def used_codes(self) -> set[str]:
        return self._used_on_top | {ignore.code for ignore in self._used}


def _line(ignore: _Ignore) -> int:
    return ignore.comment.line


def _ignores(document: Document) -> Iterator[_Ignore]:
    for comment in document.comments():
        for match in re.finditer(_COMMENT, comment.text):
            span = TextSpan(comment.line, comment.column + match.start(), comment.line, comment.column + match.end())
            for code in dict.fromkeys(code.strip().upper() for code in match.group(1).split(",")):
                if code:
                    yield _Ignore(code, comment, span)


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
        why=explain(RULES[UNUSED]).why,
        fix=f"take {ignore.code} out of the comment" if known else "prime-train rule lists the codes",
    )
