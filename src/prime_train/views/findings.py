"""Renders verdicts as text, one line per finding, GitHub annotations, JSON or SARIF. Prints nothing, checks nothing.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_train import __version__
from prime_train.core.findings import Finding, Severity
from prime_train.core.units import counted
from prime_train.rules.judge import Verdict
from prime_train.views.text import Paint, explain, pick

_MAX_SHOWN_CHARS = 160
_NO_TEXTS: Mapping[str, str] = {}
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def plain(text: str, _: str) -> str:
    """A Paint without colour."""
    return text


def full(verdict: Verdict, paint: Paint = plain, texts: Mapping[str, str] = _NO_TEXTS) -> str:
    """Every finding in its four parts, then the skipped rules. "" if there are none of either.

    `texts`: path -> the text of the file; a finding in one of them shows its line.
    """
    lines = {path: texts[path].split("\n") for path in {finding.path for finding in verdict.findings} & texts.keys()}
    for finding in verdict.findings:
        if finding.code.startswith("SEC") and finding.path in lines:
            shown, span = lines[finding.path], finding.span
            shown[span.line - 1 : span.end_line] = [""] * (span.end_line - span.line + 1)  # no finding shows them
    blocks = [_full(finding, paint, lines.get(finding.path, ())) for finding in verdict.findings]
    return "\n".join([*blocks, *_skipped(verdict, paint)])


def _skipped(verdict: Verdict, paint: Paint) -> list[str]:
    """One line for each reason why rules were skipped."""
    codes: dict[str, list[str]] = {}
    for skip in verdict.skipped:
        codes.setdefault(skip.reason, []).append(skip.code)
    return [f"{paint('skipped', 'dim')} {', '.join(sorted(rules))}: {reason}" for reason, rules in codes.items()]


def _full(finding: Finding, paint: Paint, source: Sequence[str]) -> str:
    style = _STYLES[finding.severity]
    head = f"{paint(f'{finding.severity}[{finding.code}]', style)} {_place(finding)}"
    subject = f"{finding.key} = {finding.written}" if finding.written else finding.key
    lines = [f"{head}  {paint(subject, 'bold')}" if subject else head]
    lines += _marked(finding, paint, source)
    lines += [f"  {paint(f'{label:<4}', 'dim')}  {text}" for label, text in explain(finding)]
    lines[-1] += paint(f"        (prime-train rule {finding.code})", "dim")
    return "\n".join(lines)


def _marked(finding: Finding, paint: Paint, source: Sequence[str]) -> list[str]:
    """The line of the file, and carets below the finding's part of it. [] for an empty or a very long line."""
    span = finding.span
    if not 0 < span.line <= len(source) or not source[span.line - 1].strip():
        return []
    line = source[span.line - 1].removesuffix("\r").replace("\t", " ")
    if not finding.written and (span.end_line, span.end_column) <= (span.line, span.column + 1):
        return []  # the place for a key that the file does not have
    if len(line) > _MAX_SHOWN_CHARS or not line.isprintable():
        return []
    end = span.end_column if span.end_line == span.line else len(line) + 1
    number = str(span.line)
    gutter = " " * (len(number) + 2)
    carets = " " * (span.column - 1) + "^" * max(1, min(end, len(line) + 1) - span.column)
    return [
        f"{paint(f'  {number} |', 'dim')} {line}",
        f"{paint(f'{gutter} |', 'dim')} {paint(carets, _STYLES[finding.severity])}",
    ]


def concise(verdict: Verdict, paint: Paint = plain) -> str:
    """One line per finding: path:line:column: severity[CODE] key: what; fix."""
    return "\n".join(_concise(finding, paint) for finding in verdict.findings)


def _concise(finding: Finding, paint: Paint) -> str:
    code = paint(f"{finding.severity}[{finding.code}]", _STYLES[finding.severity])
    key = f"{finding.key}: " if finding.key and finding.key not in finding.what else ""
    fix = f"; fix: {finding.fix}" if finding.fix else ""
    return f"{_place(finding)}: {code} {key}{finding.what}{fix}"


def github(verdict: Verdict) -> str:
    """Workflow commands that GitHub turns into annotations. Source: docs.github.com, Workflow commands."""
    return "\n".join(_github(finding) for finding in verdict.findings)


def _github(finding: Finding) -> str:
    level = "notice" if finding.severity is Severity.NOTE else str(finding.severity)
    span = finding.span
    properties = {
        "file": finding.path,
        "line": span.line,
        "endLine": span.end_line,
        "title": f"{finding.code} {finding.key}".strip(),
    }
    if span.line == span.end_line:  # GitHub accepts columns only if the span is on one line
        properties |= {"col": span.column, "endColumn": span.end_column}
    shown = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in properties.items())
    return f"::{level} {shown}::{_escaped(message(finding))}"


def message(finding: Finding) -> str:
    """What, why and fix of a finding, one per line, for other programs."""
    return "\n".join(text if label == "what" else f"{label}: {text}" for label, text in explain(finding))


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _place(finding: Finding) -> str:
    return f"{finding.path}:{finding.span.line}:{finding.span.column}"


def summary(verdicts: Sequence[Verdict], fixed: int = 0, *, unsafe_left: int = 0, offers: bool = False) -> str:
    """One line: "2 errors, 1 warning in 3 files", "1 file is clean; 2 findings fixed".

    `unsafe_left`: findings that --fix did not repair, because their patch changes what the run does. With `offers`:
    how many --fix would repair.
    """
    counts = _counts(verdicts)
    files = counted(len(verdicts), "file")
    found = ", ".join(counted(counts[severity], str(severity)) for severity in _STYLES if counts[severity])
    done = f"; {counted(fixed, 'finding')} fixed" if fixed else ""
    done += f"; {unsafe_left} more with --unsafe-fixes" if unsafe_left else ""
    if offers:
        patched = [finding.safe for verdict in verdicts for finding in verdict.findings if finding.patch]
        safe, unsafe = sum(patched), len(patched) - sum(patched)
        done += f"; {safe} fixable with --fix" if safe else ""
        done += f", {unsafe} more with --unsafe-fixes" if safe and unsafe else ""
    return f"{found} in {files}{done}" if found else f"{files} {'is' if len(verdicts) == 1 else 'are'} clean{done}"


def tally(verdict: Verdict) -> str:
    """The last line of validate: the numbers of findings, of rules that passed and of rules that were skipped."""
    rules = f"{counted(len(verdict.passed), 'rule')} passed"
    rules += f", {len(verdict.skipped)} skipped" if verdict.skipped else ""
    if not verdict.findings:
        return f"{verdict.path}: All checks passed. ({rules})"
    return f"{verdict.path}: {summary([verdict]).removesuffix(' in 1 file')}; {rules}"


def lint_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The document of `lint --output-format json`."""
    counts = _counts(verdicts)
    return {
        "version": 1,
        "files": [file_json(verdict) for verdict in verdicts],
        "summary": {"files": len(verdicts)} | {f"{severity}s": counts[severity] for severity in _STYLES},
    }


def validate_json(verdict: Verdict, facts: dict[str, Any]) -> dict[str, Any]:
    """The document of `validate --json`: that of lint, with the skipped rules, the passed rules and the facts."""
    return lint_json([verdict]) | {
        "skipped": [skip._asdict() for skip in verdict.skipped],
        "passed": list(verdict.passed),
        "facts": facts,
    }


def file_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "path": verdict.path,
        "dialect": verdict.dialect,
        "generation": verdict.generation or None,
        **({"generation_because": verdict.because} if verdict.because else {}),
        "root": verdict.root,
        "findings": [_finding_json(finding) for finding in verdict.findings],
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        **finding.span._asdict(),
        "key": finding.key,
        "field": finding.field or None,
        **pick(finding, "what", "why", "fix"),
        "patch": {key: _json_value(value) for key, value in finding.patch.items()},
        "fixable": bool(finding.patch),
        "applicability": ("safe" if finding.safe else "unsafe") if finding.patch else None,
    }


def _json_value(value: Any) -> Any:
    """A TOML value for JSON: dates and numbers that are not finite become text."""
    match value:
        case dict():
            return {key: _json_value(below) for key, below in value.items()}
        case list() | tuple():
            return [_json_value(below) for below in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _counts(verdicts: Iterable[Verdict]) -> Counter[Severity]:
    return Counter(finding.severity for verdict in verdicts for finding in verdict.findings)


def sarif(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The SARIF log for all files; it lists only the rules that have findings."""
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    codes = sorted({finding.code for finding in findings})
    numbers = {code: number for number, code in enumerate(codes)}
    driver = {"name": "prime-train", "semanticVersion": __version__, "rules": [_rule(code) for code in codes]}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "artifacts": [{"location": {"uri": _uri(path)}} for path in dict.fromkeys(v.path for v in verdicts)],
                "results": [_result(finding, numbers[finding.code]) for finding in findings],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    from prime_train.rules.explain import explain as explain_rule  # here, because a plain lint needs neither
    from prime_train.rules.families import load_all

    rule = load_all().get(code)
    if rule is None:
        return {"id": code}
    page = explain_rule(rule)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in rule.name.split("_")),
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": page.why or page.summary},
        "help": {"text": f"prime-train rule {code}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    span = finding.span
    place: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(finding.path)},
            "region": {
                "startLine": span.line,
                "startColumn": span.column,
                "endLine": span.end_line,
                "endColumn": span.end_column,
            },
        }
    }
    if finding.key:
        place["logicalLocations"] = [{"fullyQualifiedName": finding.key}]
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": message(finding)},
        "locations": [place],
    }


def _uri(path: str) -> str:
    """A path as a URI reference, relative to the working directory unless it is absolute."""
    from urllib.parse import quote  # here, because a plain lint does not need it

    return Path(path).as_uri() if Path(path).is_absolute() else quote(path)
