"""Turns what a rule reports into findings, each at its place in the user's files and with the keys of these files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prime_train.config.parsed_config import OTHER_GENERATION, SYNTAX, UNKNOWN_KEY, Fault, Reading
from prime_train.core.findings import Finding, Patch, Problem, TextSpan
from prime_train.rules.explain import explain
from prime_train.rules.rule import Rule
from prime_train.toml.document import Document, KeyPath, dotted, to_toml

_FIELD = re.compile(r"`([a-z_]+(?:\.[a-z_0-9]+)+)`")


def place_problems(
    rule: Rule, problems: Iterable[Problem | Fault], reading: Reading, shadowed: frozenset[str]
) -> Iterator[Finding]:
    """The findings of one rule. `shadowed` are RunSpec fields whose value is a default in place of a faulty one."""
    for found in problems:
        match found:
            case Fault():
                yield _of_fault(rule, found, reading)
            case Problem() if _applies(rule, found, reading) and shadowed.isdisjoint(_keys_of(found, reading)):
                yield _of_problem(rule, found, reading)
            case Problem():
                pass  # the problem is about a default that replaces a faulty value


def _applies(rule: Rule, problem: Problem, reading: Reading) -> bool:
    """Whether the file's format has the field, and a partial config sets each field that the problem names.

    A field that a partial config leaves unset may be set in the rest of the run. Rules that need facts always apply,
    even to a partial config.
    """
    if not reading.has(problem.at):
        return False
    named = (name for name in _fields_of(problem) if reading.has(name))
    return bool(rule.needs) or not reading.partial or all(map(reading.sets, named))


def _fields_of(problem: Problem) -> set[str]:
    """The RunSpec fields that a problem names."""
    quoted = _FIELD.findall(f"{problem.what} {problem.fix} {problem.why}")
    return {problem.at, *problem.patch, *quoted}


def _keys_of(problem: Problem, reading: Reading) -> set[str]:
    """The RunSpec fields that a problem names, and their keys: a part may be derived from the fields of another."""
    named = _fields_of(problem)
    return named.union(map(reading.key, named))


def _of_problem(rule: Rule, problem: Problem, reading: Reading) -> Finding:
    key = _key_path(reading.key(problem.at))
    path, span, written = _locate(reading.parts, key)
    can_patch = all(reading.has(at) for at in problem.patch)
    patch = {reading.key(at): value for at, value in problem.patch.items()} if can_patch else {}
    return Finding(
        code=rule.code,
        severity=rule.severity if problem.severity is None else problem.severity,
        path=path,
        span=span,
        key=dotted(key),
        field=problem.at,
        what=_with_users_keys(problem.what, reading),
        why=_with_users_keys(problem.why, reading) or _why(rule),
        fix=_with_users_keys(problem.fix, reading) or _fix_of(patch),
        patch=patch,
        written=written,
        safe=problem.safe and bool(patch),
    )


def _of_fault(rule: Rule, fault: Fault, reading: Reading) -> Finding:
    parts = (fault.document,) if fault.document is not None else reading.parts
    path, span, written = _locate_syntax_fault(parts, fault) if fault.code == SYNTAX else _locate(parts, fault.key)
    return Finding(
        code=rule.code,
        severity=rule.severity if fault.severity is None else fault.severity,
        path=path,
        span=span,
        key=dotted(fault.key),
        field=fault.shadows,
        what=fault.what,
        why=fault.why or _why(rule) + _judged_as(fault, reading),
        fix=fault.fix or _fix_of(fault.patch),
        patch=fault.patch,
        written="" if fault.hidden else written,
        safe=fault.safe and bool(fault.patch),
    )


def _judged_as(fault: Fault, reading: Reading) -> str:
    """Which generation the file is judged by, and why, for a fault about a key of that generation."""
    if not reading.because or fault.code not in (OTHER_GENERATION, UNKNOWN_KEY):
        return ""
    return f"; the file is judged as {reading.dialect} {reading.generation}: {reading.because}"


def _fix_of(patch: Patch) -> str:
    return ", ".join(
        f"{key} = {to_toml(value)}" if value is not None else f"take out {key}" for key, value in patch.items()
    )


def _with_users_keys(text: str, reading: Reading) -> str:
    """The text with RunSpec fields replaced by the keys of the user's file."""
    return _FIELD.sub(lambda match: reading.key(match.group(1)), text)


def _why(rule: Rule) -> str:
    return explain(rule).why


# --- places --------------------------------------------------------------------------------------


def _locate_syntax_fault(parts: tuple[Document, ...], fault: Fault) -> tuple[str, TextSpan, str]:
    """(path, span, text) of the place where a file cannot be parsed."""
    for part in parts:
        if part.fault is not None and part.fault.what == fault.what:
            return part.path, part.fault.span, ""
    return parts[0].path, TextSpan(1, 1, 1, 1), ""


def _locate(parts: tuple[Document, ...], key: KeyPath) -> tuple[str, TextSpan, str]:
    """(path, span, text) of the key and its value, else of the table that should hold it, else of the first line.

    In merged files it is the place whose value counts.
    """
    known = any(part.written is not None or key[0] in part.values for part in parts if key)
    if not known:  # saves looking up positions
        return parts[0].path, TextSpan(1, 1, 1, 1), ""
    for part in parts:
        place = part.place(key)
        if place is not None:
            start, end = place.key, place.value
            return part.path, TextSpan(start.line, start.column, end.end_line, end.end_column), place.written
    for part in parts:
        around = part.nearest(key)
        if around is not None:
            return part.path, around.key, ""
    return parts[0].path, TextSpan(1, 1, 1, 1), ""


def _key_path(key: str) -> KeyPath:
    """The key path of a dotted key: numbers address array elements."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))
