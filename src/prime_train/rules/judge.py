"""Judges a config: reads it, runs every rule that can run, and places what they found. No I/O.

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
from prime_train.rules.placing import key_path, placed, unreadable
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_MAX_TOLD = 1000
_FIELD = r"`([a-z_]+(?:\.[a-z_0-9]+)+)`"  # compiled when something is found: not at start-up


class Verdict(NamedTuple):
    """What was found in one file. `run` is None where no RunSpec can be built from it.

    `passed` are the codes that judged and found nothing, `ignored` those that a comment silenced.
    `because` says how the generation is known, "" for a dialect that has one only.
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

        def asked(code: str) -> bool:
            return (wanted is None or code.startswith(wanted)) and not (unwanted and code.startswith(unwanted))

        return self._replace(
            findings=tuple(finding for finding in self.findings if asked(finding.code)),
            skipped=tuple(skip for skip in self.skipped if asked(skip.code)),
            passed=tuple(code for code in self.passed if asked(code)),
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

    `prime_rl` is the generation to judge a prime-rl file by that names none itself. `path` is shown, and a hint
    at what the file is.
    """
    return judge(dialect.read(text, path, prime_rl), None)


def lint_merged(parts: tuple[tuple[str, str], ...], prime_rl: str | None = None) -> Verdict:
    """The verdict on what several prime-rl texts, each with its path, say together: a later one overrules."""
    return judge(dialect.read_merged(parts, prime_rl), None)


def validate(text: str, path: str, facts: Facts, prime_rl: str | None = None) -> Verdict:
    """The verdict with facts. Rules whose facts are not known are skipped, and say so."""
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
    kept, ignored = _silenced(found, reading, judged)
    told = {finding.code for finding in kept}
    kept.sort(key=lambda finding: (finding.path, finding.span.line, finding.span.column, finding.code))
    return Verdict(
        path=reading.document.path,
        dialect=reading.dialect,
        generation=reading.generation,
        root=reading.root,
        findings=tuple(kept),
        skipped=tuple(skipped),
        passed=tuple(code for code in passed if code not in told),
        ignored=ignored,
        run=reading.run,
        because=reading.because,
    )


def _first(findings: Iterator[Finding]) -> list[Finding]:
    """The findings of one rule, as many as anybody reads: to place a hundred thousand takes seconds."""
    told = list(islice(findings, _MAX_TOLD + 1))
    if len(told) > _MAX_TOLD:
        what = f"{told[-2].what}; there are more than {_MAX_TOLD} of these, and the rest is not told"
        told[-2:] = [told[-2]._replace(what=what)]
    return told


def _silenced(found: list[Finding], reading: Reading, judged: frozenset[str]) -> tuple[list[Finding], tuple[str, ...]]:
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
                yield _of_fault(rule, found, reading)
            case Problem() if not _is_moot(rule, found, reading) and shadowed.isdisjoint(_fields_of(found)):
                yield _of_problem(rule, found, reading)
            case Problem():
                pass  # it speaks of a default that stands in for a faulty value


def _is_moot(rule: Rule, problem: Problem, reading: Reading) -> bool:
    """Whether this format has no such field, or what is unset here may well be set in the rest of the run.

    Of the machine is judged what the run would be as it is.
    """
    if not reading.has(problem.at):
        return True
    spoken_of = (name for name in _fields_of(problem) if reading.has(name))
    return reading.partial and not rule.needs and not all(map(reading.says, spoken_of))


def _fields_of(problem: Problem) -> set[str]:
    """The RunSpec fields that a problem speaks of."""
    quoted = re.findall(_FIELD, f"{problem.what} {problem.fix} {problem.why}")
    return {problem.at, *problem.patch, *quoted}


def _of_problem(rule: Rule, problem: Problem, reading: Reading) -> Finding:
    key = key_path(reading.key(problem.at))
    path, span, written = placed(reading, key)
    can_patch = all(reading.has(at) for at in problem.patch)
    patch = {reading.key(at): value for at, value in problem.patch.items()} if can_patch else {}
    return Finding(
        code=rule.code,
        severity=rule.severity if problem.severity is None else problem.severity,
        path=path,
        span=span,
        key=dotted(key),
        field=problem.at,
        what=_in_users_words(problem.what, reading),
        why=_in_users_words(problem.why, reading) or _why(rule),
        fix=_in_users_words(problem.fix, reading) or _fix_of(patch),
        patch=patch,
        written=written,
        safe=problem.safe and bool(patch),
    )


def _of_fault(rule: Rule, fault: Fault, reading: Reading) -> Finding:
    path, span, written = unreadable(reading, fault) if fault.code == SYNTAX else placed(reading, fault.key)
    return Finding(
        code=rule.code,
        severity=rule.severity if fault.severity is None else fault.severity,
        path=path,
        span=span,
        key=dotted(fault.key),
        field=fault.shadows,
        what=fault.what,
        why=_why(rule) + _judged_as(fault, reading),
        fix=fault.fix or _fix_of(fault.patch),
        patch=fault.patch,
        written="" if fault.hidden else written,
        safe=_keeps_values(fault),
    )


def _judged_as(fault: Fault, reading: Reading) -> str:
    """Which generation a key is legal in or not, and how that is known."""
    if not reading.because or fault.code not in (OTHER_GENERATION, UNKNOWN_KEY):
        return ""
    return f"; the file is judged as {reading.dialect} {reading.generation}: {reading.because}"


def _keeps_values(fault: Fault) -> bool:
    """Whether its patch keeps what the user wrote: under its present name, in its place, in its type."""
    if fault.code == UNKNOWN_KEY:
        return len(fault.patch) > 1  # the value moves; a key that is only taken out takes its value along
    return fault.code in (OTHER_GENERATION, WRONG_TYPE) and bool(fault.patch)


def _fix_of(patch: Patch) -> str:
    return ", ".join(
        f"{key} = {to_toml(value)}" if value is not None else f"take out {key}" for key, value in patch.items()
    )


def _in_users_words(text: str, reading: Reading) -> str:
    """Names RunSpec fields as the user's file does."""
    return re.sub(_FIELD, lambda match: reading.key(match.group(1)), text)


def _why(rule: Rule) -> str:
    from prime_train.rules.explain import explain  # when something is found: not at start-up

    return explain(rule).why
