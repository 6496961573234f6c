from __future__ import annotations

import pytest

from prime_train.core.findings import Severity, TextSpan
from prime_train.rules.explain import BASE
from prime_train.rules.ignores import UNUSED
from prime_train.rules.judge import lint

UNEVEN = BASE.replace("micro_batch = 8", "micro_batch = 8\nglobal_batch = 20")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("# prime-train: ignore[BAT001]\n" + UNEVEN, []),
        (UNEVEN.replace("= 20", "= 20  # prime-train: ignore[BAT001]"), []),
        ("# prime-train: ignore[BAT001]\n" + BASE, [UNUSED]),
        ("# prime-train: ignore[BAT001, XYZ001]\n" + UNEVEN, [UNUSED]),
        (UNEVEN.replace("micro_batch = 8", "micro_batch = 8  # prime-train: ignore[BAT001]"), [UNUSED, "BAT001"]),
        ("# prime-train: ignore[BAT001, IGN001]\n" + BASE, []),
        ("# prime-train: ignore[HST001]\n" + BASE, []),  # a rule that lint cannot ask
        ("# prime-train: ignore[]\n" + BASE, []),
    ],
)
def test_ignores(text: str, codes: list[str]) -> None:
    assert [finding.code for finding in lint(text, "t").findings] == codes


def test_an_unused_ignore_is_placed_on_its_comment() -> None:
    text = BASE.replace("[run]", "[run] # here. # prime-train: ignore[XYZ001]")
    (finding,) = lint(text, "t").findings
    assert finding.severity is Severity.WARNING
    assert finding.span == TextSpan(1, 15, 1, 44)
    assert finding.what == "ignore[XYZ001] silences nothing: no rule has that code"
    assert finding.why
    assert finding.fix == "prime-train rule lists the codes"


def test_a_rule_that_found_something_has_not_passed() -> None:
    verdict = lint("# prime-train: ignore[BAT001]\n" + BASE, "t")
    assert UNUSED not in verdict.passed
    assert UNUSED in lint(BASE, "t").passed
