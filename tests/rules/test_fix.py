from __future__ import annotations

from collections.abc import Callable

import pytest
import tomli

from prime_train.core.findings import Finding, Severity, Span
from prime_train.rules.explain import BASE
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint


def judge(text: str) -> Verdict:
    return lint(text, "run.toml")


def test_faults_are_fixed_and_comments_stay() -> None:
    text = BASE.replace("micro_batch = 8", "micro_bacth = 8  # as much as fits\n[optim]\nlr = '1e-3'\n# how fast\n")
    result = fix_text(text, judge)
    assert result.verdict.findings == ()
    assert "micro_batch = 8  # as much as fits\n" in result.text
    assert "lr = 0.001\n# how fast\n" in result.text
    assert [finding.code for finding in result.applied] == ["CFG002", "CFG003"]
    assert result.refused == ()


def test_a_clean_text_and_a_broken_one_stay() -> None:
    assert fix_text(BASE, judge).text == BASE
    broken = BASE + "[optim]\nlr = ]\n"
    assert fix_text(broken, judge).text == broken


def test_only_selected_findings_are_fixed() -> None:
    text = BASE.replace("micro_batch = 8", "micro_bacth = 8\n[optim]\nlr = '1e-3'")
    result = fix_text(text, judge, lambda verdict: verdict.only(("CFG003",), ()))
    assert "micro_bacth" in result.text
    assert "lr = 0.001" in result.text


def _finding(patch: dict[str, object], code: str = "XXX001") -> Finding:
    return Finding(code, Severity.ERROR, "t", Span(1, 1, 1, 1), next(iter(patch)), "", "w", "y", "f", patch)


def _verdict(*findings: Finding) -> Verdict:
    return judge(BASE)._replace(findings=findings)


@pytest.mark.parametrize(
    ("findings_of", "after", "applied"),
    [
        # a patch that makes things worse is taken back, and the one beside it kept
        (
            lambda v: (
                [_finding({"a": 2}), _finding({"b": 2}, "YYY001")]
                if v == {"a": 1, "b": 1}
                else [_finding({"c": 1})] * 9
                if v["a"] == 2
                else []
            ),
            "a = 1\nb = 2\n",
            ["YYY001"],
        ),
        # a patch that cannot be written is refused
        (lambda v: [_finding({"a.b": 2})] if v["a"] == 1 else [], "a = 1\nb = 1\n", []),
        # patches of the same key: the first one
        (
            lambda v: [_finding({"a": 2}), _finding({"a": 3}, "YYY001")] if v["a"] == 1 else [],
            "a = 2\nb = 1\n",
            ["XXX001"],
        ),
        # one that never ends comes to an end
        (lambda v: [_finding({"a": v["a"] + 1})], "a = 13\nb = 1\n", ["XXX001"] * 12),
    ],
    ids=["worse", "impossible", "overlapping", "endless"],
)
def test_patches_that_do_not_help(
    findings_of: Callable[[dict[str, int]], list[Finding]], after: str, applied: list[str]
) -> None:
    result = fix_text("a = 1\nb = 1\n", lambda text: _verdict(*findings_of(tomli.loads(text))))
    assert result.text == after
    assert [finding.code for finding in result.applied] == applied
