"""Reads a rule's docstring: what it says, why, and its Bad and Good examples. Pure.

    One line: the rule.

    One paragraph: why.

    Bad:
        a TOML overlay on BASE that makes this rule fire, and no other
    Good:
        a TOML overlay that is clean under every rule

A `[facts.NAME]` table in an overlay changes a fact of the machine. Paragraphs after the why are notes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from inspect import cleandoc
from typing import NamedTuple

from prime_train.rules.base import Rule

BASE = """\
[run]
name = "example"
max_steps = 1000

[data]
ctx_tokens = 512

[[data.sources]]
kind = "python-stdlib"

[batch]
micro_batch = 8
"""

_EXAMPLE = r"(?m)^(Bad|Good):\n((?:(?:    .*)?\n)+)"


class Explanation(NamedTuple):
    summary: str
    why: str
    notes: tuple[str, ...]
    bad: tuple[str, ...]
    good: tuple[str, ...]


@lru_cache(maxsize=256)
def explain(rule: Rule) -> Explanation:
    doc = cleandoc(rule.doc) + "\n"
    prose = re.sub(_EXAMPLE, "", doc)
    paragraphs = [" ".join(part.split()) for part in prose.split("\n\n") if part.strip()]
    examples = [(match.group(1), cleandoc(match.group(2)) + "\n") for match in re.finditer(_EXAMPLE, doc)]
    return Explanation(
        summary=paragraphs[0] if paragraphs else "",
        why=paragraphs[1] if len(paragraphs) > 1 else "",
        notes=tuple(paragraphs[2:]),
        bad=tuple(text for kind, text in examples if kind == "Bad"),
        good=tuple(text for kind, text in examples if kind == "Good"),
    )
