"""Makes a rule of each setting in registry/foreign that cannot work. Judges the parts of one reading, reads no file.

The documentation of such a rule is made of its entry, so that `prime-train rule`, docs/rules.md and the tests of
examples hold for it as for a rule that is written in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any

from prime_train.config.foreign.conditions import holds
from prime_train.config.foreign.follow import exists
from prime_train.config.foreign.scope import Key, Scope, UnknownTruth
from prime_train.config.foreign.values import ForeignPart, Open, roots_of
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.registry.foreign import Doom, ProgramTable, defaults_of, program_tables, tables_for
from prime_train.rules.rule import RULES, Judge, Rule

FAMILY = "foreign.doomed"
_FIELD = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_SHOWN_CHARS = 60


def load_tables(formats: frozenset[str] | None = None) -> frozenset[str]:
    """Register the rules that judge parts of these formats, or all of them. Returns their codes."""
    found: set[str] = set()
    for table in program_tables().values() if formats is None else tables_for(formats):
        for doom in table.doomed:
            if formats is None or not formats.isdisjoint(doom.judges):
                found.add(doom.code)
                if doom.code not in RULES:
                    RULES[doom.code] = make_rule(doom, table)
    return frozenset(found)


def make_rule(doom: Doom, table: ProgramTable) -> Rule:
    """The rule of an entry. Raises KeyError for a severity that does not exist."""
    severity = Severity[doom.severity.upper()]
    return Rule(doom.code, severity, (), False, _judge(doom), doom.name, FAMILY, document_doom(doom, table))


def document_doom(doom: Doom, table: ProgramTable) -> str:
    """The docstring of the rule, in the form that explain.py reads."""
    what = _FIELD.sub(r"`\1`", doom.what)
    source = f"{doom.source} ({table.home})" if f"{table.name}@" in doom.source else doom.source
    parts = [
        f"{table.title}: {what}.",
        _FIELD.sub(r"`\1`", doom.why),
        f"Condition: `{' '.join(doom.when.split())}`.",
        f"Source: {source}.",
    ]
    examples = "\n".join(f"{label}:\n{indent(_example(doom, text), '    ')}" for label, text in _texts(doom))
    return "\n\n".join([*parts, examples])


def _texts(doom: Doom) -> tuple[tuple[str, str], ...]:
    return ("Bad", doom.bad), ("Good", doom.good)


def _example(doom: Doom, text: str) -> str:
    """An example as a whole file, and the files beside it."""
    files = {doom.file: text} | dict(doom.files)
    return "".join(f"# file {name}\n{content.strip()}\n" for name, content in files.items())


def _judge(doom: Doom) -> Judge:
    return lambda reading, _: _find(doom, reading)


def _find(doom: Doom, reading: Reading) -> Iterator[Fault]:
    parts = reading.foreign or ()
    for part in parts:
        if part.format in doom.judges:
            scope = scope_of(part, parts, doom)
            if holds(doom.when, scope):
                yield _fault(doom, part, scope)


def scope_of(part: ForeignPart, parts: tuple[ForeignPart, ...], doom: Doom) -> Scope:
    """What the keys of a condition on a part mean. The defaults of the part's own program come before the table's."""
    defaults = {**defaults_of(doom.table), **defaults_of(part.format)}
    roots = roots_of(parts, part.start)
    if "MODEL." in doom.when:
        from prime_train.config.foreign.model_sizes import sizes_of  # here, because few conditions are on a model

        roots["MODEL"] = sizes_of(part)
    return Scope(
        part.values,
        defaults,
        roots,
        lambda name: None if part.moved else exists(name, part.document.path),
    )


def _fault(doom: Doom, part: ForeignPart, scope: Scope) -> Fault:
    written = [key for key in doom.at if scope.value(_path(key)) is not None and _is_own(key, part.values)]
    at = written[0] if written else doom.at[0]
    # A script has no editor, and the file of another part is fixed in a lint of its own.
    patch = {**doom.patch, **dict.fromkeys(doom.remove)}
    prefix = ".".join(str(one) for one in part.at)
    return Fault(
        doom.code,
        (*part.at, *_path(at)),
        _with_values(doom.what, scope),
        _with_values(doom.fix, scope),
        {f"{prefix}.{key}" if prefix else key: value for key, value in patch.items()},
        why=_with_values(doom.why, scope),
        safe=doom.safe,
        document=part.document,
    )


def _path(key: str) -> Key:
    return tuple(key.split("."))


def _is_own(key: str, values: Mapping[str, Any]) -> bool:
    """Whether the part itself has the key, which is not its default and not of another part."""
    return Scope(values).is_written(_path(key)) is True


def _with_values(text: str, scope: Scope) -> str:
    return _FIELD.sub(lambda found: _shown(scope.value(_path(found.group(1)))), text)


def _shown(value: Any) -> str:
    if isinstance(value, UnknownTruth) or value is None:
        return "not set"
    text = value.text if isinstance(value, Open) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
