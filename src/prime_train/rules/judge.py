"""Judges a config: runs the rules and places each finding in the file. No I/O.

A command judges its config once: `judge` runs every rule in one pass; `judge_config` and `judge_rest` run them in two,
so that facts are gathered only for a config without errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from prime_train.config import detect as dialect
from prime_train.config import run_toml
from prime_train.config.parsed_config import REFUSED, Reading
from prime_train.core.findings import Finding, Severity, Skipped, TextSpan
from prime_train.rules.findings import place_problems
from prime_train.rules.ignores import silence
from prime_train.rules.rule import RULES, Rule
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.toml.document import dotted

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_MAX_FINDINGS = 1000
_SECRET = "SEC001"
_ONE_NUMBER = "JAX004"


class Verdict(NamedTuple):
    """The findings in one file. `run` is None if no RunSpec can be built from the file.

    `passed` are the codes of rules that ran and found nothing, `ignored` the codes that a comment silenced.
    `because` is the reason for the choice of `generation`, "" for a dialect that has only one.
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
    is_yaml: bool = False  # or JSON

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
        """Whether no finding is at error level: the run may start."""
        return self.worst is not Severity.ERROR

    def passes(self, *, strict: bool) -> bool:
        """Whether no finding is at error level, or at warning level if `strict`."""
        return self.worst is None or self.worst < (Severity.WARNING if strict else Severity.ERROR)


def lint(text: str, path: str, prime_rl: str | None = None) -> Verdict:
    """The verdict on a config text without facts. `path` is shown, and its suffix marks a Python script.

    `prime_rl` is the generation of a prime-rl file that names none.
    """
    return judge(dialect.read(text, path, prime_rl))


def lint_merged(parts: tuple[tuple[str, str], ...], prime_rl: str | None = None) -> Verdict:
    """The verdict without facts on several (text, path) of prime-rl, merged; a later file overrules an earlier one."""
    return judge(dialect.read_merged(parts, prime_rl))


def judge(reading: Reading, facts: Facts | None = None) -> Verdict:
    """The verdict of every rule that can run.

    Rules that need facts run only with `facts`; a rule is skipped, with the reason, if a fact that it needs is not
    known.
    """
    return _run_rules(reading, tuple(_rules(reading, facts)), facts, _judge_words(reading))


def judge_config(reading: Reading) -> Verdict:
    """The verdict of the rules that neither need nor use facts. `judge_rest` completes it."""
    rules = tuple(rule for rule in _rules(reading, None) if not (rule.needs or rule.uses))
    return _run_rules(reading, rules, None, _judge_words(reading))


def judge_rest(reading: Reading, verdict: Verdict, facts: Facts | None) -> Verdict:
    """The verdict of `judge_config`, completed by the rules that it left out: together they equal one `judge`."""
    # A rule that has run needs no facts, so no fact can change what it found.
    done = {*verdict.passed, *verdict.ignored, *(finding.code for finding in verdict.findings)}
    rest = _run_rules(reading, (rule for rule in _rules(reading, facts) if rule.code not in done), facts)
    added = [finding for finding in rest.findings if finding not in verdict.findings]
    findings = tuple(sorted((*verdict.findings, *added), key=_place))
    found = {finding.code for finding in findings}
    return rest._replace(
        findings=findings,
        passed=tuple(code for code in (*verdict.passed, *rest.passed) if code not in found),
        ignored=tuple(sorted({*verdict.ignored, *rest.ignored})),
    )


def compare(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts on files that are judged together, without the findings that another of the files disproves.

    JAX004 assumes that every host runs one script. Scripts of one group of processes that have numbers of their own
    are run by a process each. What is found in a file is reported once, even if other files point to it.
    """
    found = list(verdicts)
    numbers: dict[tuple[str | None, int | None], set[int]] = {}
    for verdict in found:
        for group, number in _literal_numbers(verdict):
            numbers.setdefault(group, set()).add(number)

    own = {_identity(each) for verdict in found for each in verdict.findings if each.path == verdict.path}
    seen: set[tuple[str, TextSpan, str, str]] = set()

    def compared(verdict: Verdict) -> Verdict:
        once = tuple(
            each for each in verdict.findings if each.path == verdict.path or _identity(each) not in own | seen
        )
        seen.update(map(_identity, once))
        verdict = verdict._replace(findings=once)
        several = any(len(numbers[group]) > 1 for group, _ in _literal_numbers(verdict))
        kept = tuple(finding for finding in verdict.findings if finding.code != _ONE_NUMBER or not several)
        if len(kept) == len(verdict.findings):
            return verdict
        return verdict._replace(findings=kept, passed=(*verdict.passed, _ONE_NUMBER))

    return [compared(verdict) for verdict in found]


def _identity(finding: Finding) -> tuple[str, TextSpan, str, str]:
    return finding.path, finding.span, finding.code, finding.what


def _literal_numbers(verdict: Verdict) -> Iterator[tuple[tuple[str | None, int | None], int]]:
    """((coordinator, number of processes), process_id) of each start of a script that has a literal process_id."""
    if verdict.run is not None and verdict.run.jax is not None:
        for start in verdict.run.jax.starts:
            if start.process_id is not None:
                yield (start.coordinator_address, start.num_processes), start.process_id


def needs() -> frozenset[str]:
    """Every fact that some rule needs or uses."""
    from prime_train.rules.families import load_all

    return frozenset(need for rule in load_all().values() for need in (*rule.needs, *rule.uses))


def _rules(reading: Reading, facts: Facts | None) -> Iterable[Rule]:
    """The rules that may find something, imported only here."""
    from prime_train.rules import families

    if reading.dialect == "script":
        return families.load_for_script()
    if reading.foreign is not None:
        own = families.load_for_foreign(frozenset(part.format for part in reading.foreign))
        # The rules on a machine judge any run; those on a config alone are of the formats of this project.
        return own if facts is None else [*own, *(rule for rule in families.load_all().values() if rule.needs)]
    # Facts are gathered in seconds, so the import of every family is no loss there.
    if facts is not None:
        families.load_all()
    elif reading.dialect == run_toml.DIALECT and _has_rollouts_or_server(reading.run):
        families.load_for_config()
    else:
        families.load_for_dialect(reading.dialect)
    return RULES.values()


def _has_rollouts_or_server(run: RunSpec | None) -> bool:
    return run is not None and (run.server is not None or policy_of(run) is not None)


def _judge_words(reading: Reading) -> Sequence[Finding]:
    """The findings on the command line of a run of any trainer."""
    if reading.run is None or reading.run.command is None:
        return ()
    from prime_train.rules.command_words import find_in_words  # here, because most configs have no command

    return tuple(find_in_words(reading.run.command, reading, lambda script: judge_config(script).findings))


def _run_rules(reading: Reading, rules: Iterable[Rule], facts: Facts | None, others: Sequence[Finding] = ()) -> Verdict:
    """The verdict of these rules. `others`: what was found beside them; a comment can silence it in this file."""
    found = [finding for finding in others if finding.path == reading.document.path]
    skipped: list[Skipped] = []
    passed: list[str] = []
    # A value that is not legal was replaced by its default, and no rule may judge what the user did not write.
    shadowed = frozenset(fault.shadows for fault in reading.faults if fault.shadows)
    for rule in rules:
        if (rule.needs and facts is None) or (rule.reads_run and reading.run is None):
            continue
        # A guess in place of a fact would be a wrong finding; a rule that is skipped is shown with its reason.
        missing = _missing_facts(rule, facts) if rule.needs else None
        if missing:
            skipped.append(missing)
            continue
        problems = rule.check(reading, facts)
        if (problem := next(problems, None)) is None:  # as nearly always
            passed.append(rule.code)
            continue
        # Only where there is a problem: its place needs a syntax tree, and most files never import one.
        findings = _first(place_problems(rule, chain((problem,), problems), reading, shadowed))
        found.extend(findings)
        # A problem at a key that this format does not have is dropped, and the rule has found nothing.
        if not findings:
            passed.append(rule.code)
    found = _without_secrets(_without_repeats(found, reading), reading)
    judged = frozenset(passed).union(finding.code for finding in found)
    kept, ignored = _remove_ignored(found, reading, judged)
    kept += [finding for finding in others if finding.path != reading.document.path]
    kept_codes = {finding.code for finding in kept}
    return Verdict(
        path=reading.document.path,
        dialect=reading.dialect,
        generation=reading.generation,
        root=reading.root,
        findings=tuple(sorted(kept, key=_place)),
        skipped=tuple(skipped),
        passed=tuple(code for code in passed if code not in kept_codes),
        ignored=ignored,
        run=reading.run,
        because=reading.because,
        is_yaml=reading.foreign is not None and not reading.document.path.endswith(".toml"),
    )


def _without_repeats(found: list[Finding], reading: Reading) -> list[Finding]:
    """The findings with one for each combination that the program refuses.

    An error of another rule stands in place of the refusal, because it gives the better repair. A refusal stands in
    place of a warning that repairs the same keys, because the run does not start.
    """
    combined = {(dotted(each.key), each.what): each.keys for each in reading.faults if each.code == REFUSED}
    if not combined:
        return found
    others = (each for each in found if each.code != REFUSED and each.severity is Severity.ERROR)
    errors = {key for each in others for key in (each.key, *each.patch)}
    errors |= {re.split(r"\.\d+(?:\.|$)", key)[0] for key in errors}  # a combination names the array, not its element
    kept = [
        each
        for each in found
        if each.code != REFUSED or errors.isdisjoint(map(dotted, combined.get((each.key, each.what), ())))
    ]
    refused = {
        dotted(key)
        for each in kept
        if each.code == REFUSED and each.severity is Severity.ERROR
        for key in combined.get((each.key, each.what), ())
    }
    return [
        each
        for each in kept
        if each.severity is Severity.ERROR or not each.patch or not refused.issuperset((each.key, *each.patch))
    ]


def _without_secrets(found: list[Finding], reading: Reading) -> list[Finding]:
    """The findings without the value of a secret that one of them reports."""
    if not any(finding.code == _SECRET for finding in found):
        return found
    from prime_train.rules.config.sec_secrets import mask_secrets

    return mask_secrets(found, reading.document.values)


def _place(finding: Finding) -> tuple[str, int, int, str]:
    return finding.path, finding.span.line, finding.span.column, finding.code


def _first(findings: Iterator[Finding]) -> list[Finding]:
    """The first findings of one rule. To place a hundred thousand takes seconds, and they are too many to read."""
    first = list(islice(findings, _MAX_FINDINGS + 1))
    if len(first) > _MAX_FINDINGS:
        what = f"{first[-2].what}; there are more than {_MAX_FINDINGS} of these, and the rest is not shown"
        first[-2:] = [first[-2]._replace(what=what)]
    return first


def _remove_ignored(
    found: list[Finding], reading: Reading, judged: frozenset[str]
) -> tuple[list[Finding], tuple[str, ...]]:
    """The findings that no ignore comment silences, and the codes of the silenced findings."""
    kept: list[Finding] = []
    ignored: set[str] = set()
    for part in reading.parts:
        left, silent = silence([finding for finding in found if finding.path == part.path], part, judged)
        kept.extend(left)
        ignored.update(silent)
    return kept, tuple(sorted(ignored))


def _missing_facts(rule: Rule, facts: Facts | None) -> Skipped | None:
    """The first needed fact that is not known."""
    if facts is None:
        return None
    from prime_train.facts.facts import NotKnown

    for need in rule.needs:
        fact = getattr(facts, need)
        if isinstance(fact, NotKnown):
            return Skipped(rule.code, need, fact.reason)
    return None
