"""Renders verdicts as SARIF 2.1.0, for code scanning. Prints nothing, checks nothing.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prime_train import __version__
from prime_train.core.findings import Finding, Severity
from prime_train.rules.explain import explain
from prime_train.rules.families import load_all
from prime_train.rules.judge import Verdict
from prime_train.views.findings.render import message

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


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
    rules = load_all()
    if code not in rules:
        return {"id": code}
    rule = rules[code]
    page = explain(rule)
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
    return Path(path).as_uri() if Path(path).is_absolute() else quote(path)
