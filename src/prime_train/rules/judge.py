"""Judges a config: reads it, runs every rule that can run, and locates their findings. No I/O.

`lint` and `validate` are the same judgement; validate has facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from prime_train.dialects import dialect, native
from prime_train.dialects.reading import OTHER_GENERATION, SYNTAX, UNKNOWN_KEY, WRONG_TYPE, Fault, Reading
from prime_train.document import dotted, to_toml
from prime_train.findings import Finding, Patch, Problem, Severity, Skipped
from prime_train.rules.base import RULES, Rule
from prime_train.rules.ignores import silence
from prime_train.rules.placing import key_path, locate, locate_syntax_fault
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_MAX_FINDINGS = 1000
_FIELD = r"`([a-z_]+(?:\.[a-z_0-9]+)+)`"  # compiled when something is found: not at start-up


class Verdict(NamedTuple):
    """The result for one file. `run` is None if no RunSpec can be built from it.

    `passed` are the codes of rules that found nothing, `ignored` those that a comment silenced. `because` is how the
    generation is known, "" for a dialect that has only one.
    """

    path: str
    dialect: str
    generation: str
    root: str
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    passed: tuple[str, ...]
    ignored: tuple[str, ...]
    run: RunSpec | None
    because: str = ""

    def only(self, wanted: tuple[str, ...] | None, unwanted: tuple[str, ...]) -> Verdict:
        """The verdict without the rules that are not wanted. Both are codes or prefixes of codes."""

        def is_wanted(code: str) -> bool:
            return (wanted is None or code.startswith(wanted)) and not (unwanted and code.startswith(unwanted))

        return self._replace(
            findings=tuple(finding for finding in self.findings if is_wanted(finding.code)),
            skipped=tuple(skip for skip in self.skipped if is_wanted(skip.code)),
            passed=tuple(code for code in self.passed if is_wanted(code)),
        )

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), default=None)

    @property
    def ok(self) -> bool:
        """No finding at error level: the run may start."""
        return self.worst is not Severity.ERROR


def lint(text: str, path: str, prime_rl: str | None = None) -> Verdict:
    """The verdict on a config text, without any fact of the machine.

    `prime_rl` is the generation of a prime-rl file that names none itself. `path` is shown, and is a hint at the kind
    of file.
    """
    return judge(dialect.read(text, path, prime_rl), None)


def lint_merged(parts: tuple[tuple[str, str], ...], prime_rl: str | None = None) -> Verdict:
    """The verdict on several prime-rl texts, each with its path, merged in order: values of later ones count."""
    return judge(dialect.read_merged(parts, prime_rl), None)


def validate(text: str, path: str, facts: Facts, prime_rl: str | None = None) -> Verdict:
    """The verdict with facts. Rules whose facts are not known are listed as skipped."""
    return judge(dialect.read(text, path, prime_rl), facts)


def needs() -> frozenset[str]:
    """Every fact that some rule needs or uses."""
    from prime_train.rules.families import load_all

    return frozenset(need for rule in load_all().values() for need in (*rule.needs, *rule.uses))


def _rules_for(reading: Reading, facts: Facts | None) -> Iterable[Rule]:
    """Imports the rules that can report something on this file, and returns them."""
    from prime_train.rules import families

    if reading.dialect == "script":
        return families.load_for_script()
    if facts is not None:
        families.load_all()
    elif reading.dialect == native.DIALECT and (reading.run is None or reading.run.server is None):
        families.load_for_run_toml()
    else:
        families.load_for_config()
    return RULES.values()


def judge(reading: Reading, facts: Facts | None) -> Verdict:
    found: list[Finding] = []
    skipped: list[Skipped] = []
    passed: list[str] = []
    shadowed = frozenset(fault.shadows for fault in reading.faults if fault.shadows)
    for rule in _rules_for(reading, facts):
        if (rule.needs and facts is None) or (rule.reads_run and reading.run is None):
            continue
        missing = _missing_facts(rule, facts)
        if missing:
            skipped.append(missing)
            continue
        findings = _first(_apply(rule, reading, facts, shadowed))
        found.extend(findings)
        if not findings:
            passed.append(rule.code)
    judged = frozenset(passed).union(finding.code for finding in found)
    kept, ignored = _silence(found, reading, judged)
    reported = {finding.code for finding in kept}
    kept.sort(key=lambda finding: (finding.path, finding.span.line, finding.span.column, finding.code))
    return Verdict(
        path=reading.document.path,
        dialect=reading.dialect,
        generation=reading.generation,
        root=reading.root,
        findings=tuple(kept),
        skipped=tuple(skipped),
        passed=tuple(code for code in passed if code not in reported),
        ignored=ignored,
        run=reading.run,
        because=reading.because,
    )


def _first(findings: Iterator[Finding]) -> list[Finding]:
    """The first findings of one rule, because to locate a hundred thousand takes seconds."""
    first = list(islice(findings, _MAX_FINDINGS + 1))
    if len(first) > _MAX_FINDINGS:
        what = f"{first[-2].what}; there are more than {_MAX_FINDINGS} of these, and the rest is not shown"
        first[-2:] = [first[-2]._replace(what=what)]
    return first


def _silence(found: list[Finding], reading: Reading, judged: frozenset[str]) -> tuple[list[Finding], tuple[str, ...]]:
    """The findings that no comment of their file silences, and the codes of those that one does."""
    kept: list[Finding] = []
    ignored: set[str] = set()
    for part in reading.parts:
        left, silent = silence([finding for finding in found if finding.path == part.path], part, judged)
        kept.extend(left)
        ignored.update(silent)
    return kept, tuple(sorted(ignored))


def _missing_facts(rule: Rule, facts: Facts | None) -> Skipped | None:
    """The first fact the rule needs and that is not known."""
    if facts is None or not rule.needs:
        return None
    from prime_train.facts.facts import NotKnown

    for need in rule.needs:
        fact = getattr(facts, need)
        if isinstance(fact, NotKnown):
            return Skipped(rule.code, need, fact.reason)
    return None


def _apply(rule: Rule, reading: Reading, facts: Facts | None, shadowed: frozenset[str]) -> Iterator[Finding]:
    for found in rule.check(reading, facts):
        match found:
            case Fault():
                yield _finding_of_fault(rule, found, reading)
            case Problem() if not _is_out_of_scope(rule, found, reading) and shadowed.isdisjoint(_fields_of(found)):
                yield _finding_of_problem(rule, found, reading)
            case Problem():
                pass  # it is about a default that replaces a faulty value


def _is_out_of_scope(rule: Rule, problem: Problem, reading: Reading) -> bool:
    """Whether this format has no such field, or a field is unset that the rest of a partial config may set.

    Problems of rules that need facts are always in scope, even on a partial config.
    """
    if not reading.has(problem.at):
        return True
    fields = (name for name in _fields_of(problem) if reading.has(name))
    return reading.partial and not rule.needs and not all(map(reading.says, fields))


def _fields_of(problem: Problem) -> set[str]:
    """The RunSpec fields that a problem names."""
    quoted = re.findall(_FIELD, f"{problem.what} {problem.fix} {problem.why}")
    return {problem.at, *problem.patch, *quoted}


def _finding_of_problem(rule: Rule, problem: Problem, reading: Reading) -> Finding:
    key = key_path(reading.key(problem.at))
    path, span, written = locate(reading, key)
    can_patch = all(reading.has(at) for at in problem.patch)
    patch = {reading.key(at): value for at, value in problem.patch.items()} if can_patch else {}
    return Finding(
        code=rule.code,
        severity=rule.severity if problem.severity is None else problem.severity,
        path=path,
        span=span,
        key=dotted(key),
        field=problem.at,
        what=_with_file_keys(problem.what, reading),
        why=_with_file_keys(problem.why, reading) or _why(rule),
        fix=_with_file_keys(problem.fix, reading) or _fix_of(patch),
        patch=patch,
        written=written,
        safe=problem.safe and bool(patch),
    )


def _finding_of_fault(rule: Rule, fault: Fault, reading: Reading) -> Finding:
    path, span, written = locate_syntax_fault(reading, fault) if fault.code == SYNTAX else locate(reading, fault.key)
    return Finding(
        code=rule.code,
        severity=rule.severity if fault.severity is None else fault.severity,
        path=path,
        span=span,
        key=dotted(fault.key),
        field=fault.shadows,
        what=fault.what,
        why=_why(rule) + _generation_note(fault, reading),
        fix=fault.fix or _fix_of(fault.patch),
        patch=fault.patch,
        written="" if fault.hidden else written,
        safe=_keeps_values(fault),
    )


def _generation_note(fault: Fault, reading: Reading) -> str:
    """The generation by which a key is judged, and how it is known."""
    if not reading.because or fault.code not in (OTHER_GENERATION, UNKNOWN_KEY):
        return ""
    return f"; the file is judged as {reading.dialect} {reading.generation}: {reading.because}"


def _keeps_values(fault: Fault) -> bool:
    """Whether its patch keeps the value: under another name, in another place, or in another type."""
    if fault.code == UNKNOWN_KEY:
        return len(fault.patch) > 1  # the value moves to another key; to take the key out loses the value
    return fault.code in (OTHER_GENERATION, WRONG_TYPE) and bool(fault.patch)


def _fix_of(patch: Patch) -> str:
    return ", ".join(
        f"{key} = {to_toml(value)}" if value is not None else f"take out {key}" for key, value in patch.items()
    )


def _with_file_keys(text: str, reading: Reading) -> str:
    """The text with the keys of the user's file in place of RunSpec fields."""
    return re.sub(_FIELD, lambda match: reading.key(match.group(1)), text)


def _why(rule: Rule) -> str:
    from prime_train.rules.explain import explain  # when something is found: not at start-up

    return explain(rule).why
