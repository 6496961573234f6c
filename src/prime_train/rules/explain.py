"""Parses a rule's docstring: summary, reason, notes, Bad and Good examples. Pure.

    One line: the rule.

    One paragraph: why.

    Bad:
        a TOML overlay on BASE that makes this rule fire, and no other
    Good:
        a TOML overlay that is clean under every rule
    Bad (prime-rl 2026-08):
        the same on another of the BASES; `rl`, `sft`, `audio`, `command`: those of a run.toml, `recipe` has a [recipe]

    Bad (script):
        a whole Python script
    Bad (jax):
        the end of a script that imports JAX and turns its preemption service off
    Bad:
        # file job.sh
        a whole file of another program, and after another such line a file beside it

A `[facts.NAME]` table in an overlay changes a fact of the machine; a GPU of it has the properties of an H200 that it
does not set. Paragraphs after the why are notes; one that begins with "Source:" names where the rule's numbers come
from.
"""

from __future__ import annotations

import re
from functools import lru_cache
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from prime_train.core.installation import shipped
from prime_train.rules.rule import Rule


def _read_bases() -> dict[str, str]:
    """Label -> the config that such examples are laid over. Each is a file of registry/ named after its label."""
    paths = sorted(Path(shipped("example_bases")).glob("*.toml"))
    return {path.stem.replace("_", " "): path.read_text(encoding="utf-8") for path in paths}


BASES = _read_bases()
BASE = BASES[""] = BASES.pop("run")  # of examples without a label
SCRIPT = "script"  # in the place of a base: the example is the whole file
FILE = "file"  # in the place of a base: the example has files, each after a line `# file NAME`

_JAX_START = """\
import jax

jax.config.update("jax_enable_preemption_service", False)
"""

_EXAMPLE = r"(?m)^(Bad|Good)(?: \(([^)\n]*)\))?:\n((?:(?:    .*)?\n)+)"


class Explanation(NamedTuple):
    """An example on another base than run.toml's begins with a comment that names it: `# prime-rl 2026-08`."""

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
    examples = [(match.group(1), _example(match)) for match in re.finditer(_EXAMPLE, doc)]
    return Explanation(
        summary=paragraphs[0] if paragraphs else "",
        why=paragraphs[1] if len(paragraphs) > 1 else "",
        notes=tuple(paragraphs[2:]),
        bad=tuple(text for kind, text in examples if kind == "Bad"),
        good=tuple(text for kind, text in examples if kind == "Good"),
    )


def base_of(example: str) -> str:
    """The key in BASES of the config that an example is laid over; SCRIPT or FILE where it stands for itself."""
    first = example.partition("\n")[0].removeprefix("# ")
    if first.startswith(f"{FILE} "):
        return FILE
    return first if first in BASES or first == SCRIPT else ""


def files_of(example: str) -> dict[str, str]:
    """Name -> text of the files of an example; the first is the one that is judged."""
    pieces = re.split(rf"(?m)^# {FILE} (\S+)\n", example)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _example(match: re.Match[str]) -> str:
    label, text = match.group(2), cleandoc(match.group(3)) + "\n"
    if label == "jax":
        imports_os = "import os\n\n" if "os." in text else ""
        return f"# {SCRIPT}\n{imports_os}{_JAX_START}{text}"
    return f"# {label}\n{text}" if label else text
