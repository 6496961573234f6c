from __future__ import annotations

from prime_train.models.verdict.verdicts import Check, ModelUse, ModelVerdict, Outcome, failure, ok
from prime_train.views.models import verdict_json, verdict_text

VERDICT = ModelVerdict(
    "lab/mine",
    "hub",
    "0123456789abcdef",
    (ok("access", "there"), failure("weights", "half of them\nare missing", "nothing loads a part", "download again")),
    (
        ModelUse("rl", Outcome.FAILURE, "cannot be used (weights)", "download again", ("weights",)),
        ModelUse("pretraining", Outcome.OK, "can be used", ""),
    ),
    {"parameters": 7},
)


def test_a_failed_check_has_why_and_fix() -> None:
    assert verdict_text(verdict_json(VERDICT)).splitlines() == [
        "lab/mine  (hub, revision 0123456789ab)",
        "  ok         access   there",
        "  failure    weights  half of them are missing",
        "                      why  nothing loads a part",
        "                      fix  download again",
        "",
        "RL           cannot be used (weights)",
        "             fix  download again",
        "pretraining  can be used",
    ]


def test_colour_marks_outcomes_and_nothing_else() -> None:
    painted = verdict_text(verdict_json(VERDICT), lambda text, style: f"<{style}>{text}</>")
    assert "<green>ok       </>  access" in painted
    assert "<red>cannot be used (weights)</>" in painted


def test_the_document_has_null_for_missing_values() -> None:
    document = verdict_json(VERDICT)
    assert (document["version"], document["usable"]) == (1, True)
    assert document["checks"][0] == {"id": "access", "outcome": "ok", "what": "there", "why": None, "fix": None}
    assert document["uses"]["rl"]["because"] == ["weights"]


def test_a_model_that_is_good_for_nothing() -> None:
    assert not VERDICT._replace(uses=VERDICT.uses[:1]).usable
    unknown = Check("weights", Outcome.NOT_KNOWN, "?")
    assert unknown.fix == ""
