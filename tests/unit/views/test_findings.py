from __future__ import annotations

import json
from datetime import date

import pytest

from prime_train.core.findings import Finding, Severity, Skipped, TextSpan
from prime_train.rules.judge import Verdict
from prime_train.views import findings as view

FINDING = Finding(
    code="BAT001",
    severity=Severity.ERROR,
    path="run.toml",
    span=TextSpan(7, 1, 7, 19),
    key="batch.global_batch",
    field="batch.global_batch",
    what="100 sequences do not divide by 24",
    why="no remainder can be placed",
    fix="batch.global_batch = 96",
    patch={"batch.global_batch": 96},
    written="100",
)


def verdict(*findings: Finding, skipped: tuple[Skipped, ...] = ()) -> Verdict:
    return Verdict("run.toml", "prime-train", "", "run", findings, skipped, ("RUN001",), (), None)


def test_full() -> None:
    assert view.full(verdict(FINDING)) == (
        "error[BAT001] run.toml:7:1  batch.global_batch = 100\n"
        "  what  100 sequences do not divide by 24\n"
        "  why   no remainder can be placed\n"
        "  fix   batch.global_batch = 96        (prime-train rule BAT001)"
    )


def test_full_shows_what_was_skipped() -> None:
    gone, busy = "it was not there", "the driver does not answer"
    skipped = (
        Skipped("DSK002", "save_dir", gone),
        Skipped("GPU001", "gpus", busy),
        Skipped("DSK001", "save_dir", gone),
    )
    assert view.full(verdict(skipped=skipped)).splitlines() == [
        "skipped DSK001, DSK002: it was not there",
        "skipped GPU001: the driver does not answer",
    ]


def test_full_paints_headings() -> None:
    painted = view.full(verdict(FINDING), lambda text, style: f"<{style}>{text}</>")
    assert painted.startswith("<red>error[BAT001]</> run.toml:7:1  <bold>batch.global_batch = 100</>\n  <dim>what</>")


def test_concise_is_one_line() -> None:
    assert view.concise(verdict(FINDING)) == (
        "run.toml:7:1: error[BAT001] batch.global_batch: 100 sequences do not divide by 24; "
        "fix: batch.global_batch = 96"
    )


def test_github_escapes() -> None:
    finding = Finding(
        code="X001",
        severity=Severity.NOTE,
        path="a,b:c.toml",
        span=TextSpan(1, 2, 3, 4),
        key="",
        field="",
        what="100 %\nof it",
        why="",
        fix="less, please",
    )
    assert view.github(verdict(finding)) == (
        "::notice file=a%2Cb%3Ac.toml,line=1,endLine=3,title=X001::100 %25%0Aof it%0Afix: less, please"
    )


def test_lint_json() -> None:
    document = view.lint_json([verdict(FINDING), verdict()])
    assert document["summary"] == {"files": 2, "errors": 1, "warnings": 0, "notes": 0}
    assert document["files"][0] == {
        "path": "run.toml",
        "dialect": "prime-train",
        "generation": None,
        "root": "run",
        "findings": [
            {
                "code": "BAT001",
                "severity": "error",
                "line": 7,
                "column": 1,
                "end_line": 7,
                "end_column": 19,
                "key": "batch.global_batch",
                "field": "batch.global_batch",
                "what": "100 sequences do not divide by 24",
                "why": "no remainder can be placed",
                "fix": "batch.global_batch = 96",
                "patch": {"batch.global_batch": 96},
                "fixable": True,
                "applicability": "unsafe",
            }
        ],
    }


def test_validate_json() -> None:
    skipped = (Skipped("DSK001", "save_dir", "gone"),)
    document = view.validate_json(verdict(skipped=skipped), {"cpu": {"cores": 2}})
    assert document["skipped"] == [{"code": "DSK001", "needs": "save_dir", "reason": "gone"}]
    assert document["passed"] == ["RUN001"]
    assert document["facts"] == {"cpu": {"cores": 2}}


def test_a_patch_of_any_toml_value_is_json() -> None:
    patch = {"a": date(2026, 1, 2), "b": float("inf"), "c": [{"d": None}], "e": "é"}
    finding = Finding("X001", Severity.ERROR, "p", TextSpan(1, 1, 1, 1), "a", "", "w", "", "", patch)
    text = json.dumps(view.lint_json([verdict(finding)]), allow_nan=False)
    assert json.loads(text)["files"][0]["findings"][0]["patch"] == {
        "a": "2026-01-02",
        "b": "inf",
        "c": [{"d": None}],
        "e": "é",
    }


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ([verdict()], "1 file is clean"),
        ([verdict(), verdict()], "2 files are clean"),
        ([verdict(FINDING, FINDING), verdict()], "2 errors in 2 files"),
    ],
)
def test_summary(verdicts: list[Verdict], text: str) -> None:
    assert view.summary(verdicts) == text


def test_tally() -> None:
    assert view.tally(verdict()) == "run.toml: All checks passed. (1 rule passed)"
    skipped = (Skipped("DSK001", "save_dir", "gone"),)
    assert view.tally(verdict(FINDING, skipped=skipped)) == "run.toml: 1 error; 1 rule passed, 1 skipped"
