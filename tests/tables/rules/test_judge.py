from __future__ import annotations

from dataclasses import replace

import pytest

from prime_train.config import detect
from prime_train.core.findings import Severity
from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import Gpu, VisibleGpus
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.foreign.doomed import FAMILY as DOOMED
from prime_train.rules.judge import Verdict, judge, judge_config, judge_rest, lint, needs
from prime_train.rules.rule import RULES, known
from tests.unit.rules.examples import GOOD_MACHINE, facts_of, validate

UNEVEN = BASE.replace("micro_batch = 8", "micro_batch = 8\nglobal_batch = 20")


def codes(verdict: Verdict) -> list[str]:
    return [finding.code for finding in verdict.findings]


def test_a_clean_config() -> None:
    verdict = lint(BASE, "run.toml")
    assert verdict.findings == ()
    assert verdict.ok
    assert verdict.worst is None
    assert verdict.run is not None
    assert set(verdict.passed) == {rule.code for rule in RULES.values() if not rule.needs}


def test_a_finding_names_the_place_and_the_key_of_the_file() -> None:
    (finding,) = lint(UNEVEN, "run.toml").findings
    assert (finding.code, finding.severity, finding.path) == ("BAT001", Severity.ERROR, "run.toml")
    assert finding.key == finding.field == "batch.global_batch"
    assert UNEVEN.split("\n")[finding.span.line - 1] == "global_batch = 20"
    assert (finding.span.column, finding.span.end_column, finding.written) == (1, 18, "20")
    assert finding.what == "20 sequences do not divide by batch.micro_batch 8 x parallel.processes 1 = 8"
    assert finding.fix == "batch.global_batch = 16"
    assert finding.patch == {"batch.global_batch": 16}


def test_findings_come_in_the_order_of_the_file() -> None:
    verdict = lint(UNEVEN + "[model]\nheads = 8\nkv_heads = 3\n[optim]\nlr = 0.0\n", "run.toml")
    assert codes(verdict) == ["BAT001", "MOD001", "CFG004"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (UNEVEN.replace("= 20", "= 20  # prime-train: ignore[BAT001]"), []),
        (UNEVEN.replace("= 20", "= 20  #prime-train:ignore[MOD001, BAT001]"), []),
        ("# prime-train: ignore[BAT001]\n" + UNEVEN, []),
        (UNEVEN.replace("= 20", "= 20  # prime-train: ignore[MOD001]"), ["BAT001"]),
        (UNEVEN.replace("[batch]", "[batch]  # prime-train: ignore[BAT001]"), ["BAT001"]),
        (UNEVEN.replace('"example"', '"example"  # prime-train: ignore[BAT001]'), ["BAT001"]),
        (UNEVEN.replace("= 20", "= 20\n[tokenizer]\npath = '# prime-train: ignore[BAT001]'"), ["BAT001"]),
    ],
)
def test_ignore_comments(text: str, left: list[str]) -> None:
    verdict = lint(text, "run.toml").only(None, ("IGN",))
    assert codes(verdict) == left
    assert verdict.ignored == (("BAT001",) if not left else ())


def test_rules_run_beside_a_fault_elsewhere() -> None:
    assert codes(lint(UNEVEN + "[optim]\nlr = 'x'\n", "run.toml")) == ["BAT001", "CFG003"]


def test_no_rule_judges_a_default_that_replaces_a_faulty_value() -> None:
    """micro_batch would be 8, which 20 does not divide by; the user wrote something else."""
    assert codes(lint(UNEVEN.replace("micro_batch = 8", "micro_batch = '4'"), "run.toml")) == ["CFG003"]
    assert codes(lint(UNEVEN.replace("micro_batch", "micro_bacth"), "run.toml")) == ["CFG002"]
    text = BASE + '[schedule]\nkind = "wds"\ndecay_steps = 100\n'
    assert codes(lint(text, "run.toml")) == ["CFG005"]


def test_rules_that_need_facts_judge_only_with_facts() -> None:
    facts = replace(GOOD_MACHINE, save_dir=known(GOOD_MACHINE.save_dir)._replace(refusal="Read-only file system"))
    assert codes(lint(BASE, "run.toml")) == []
    assert codes(validate(BASE, "run.toml", facts)) == ["DSK002"]


def test_a_rule_whose_fact_is_not_known_is_listed_as_skipped() -> None:
    verdict = validate(BASE, "run.toml", replace(GOOD_MACHINE, save_dir=NotKnown("it was not there")))
    assert {(skip.code, skip.needs, skip.reason) for skip in verdict.skipped} == {
        (code, "save_dir", "it was not there") for code in ("DSK001", "DSK002", "DSK003", "DSK004", "DSK005", "PTH005")
    }
    assert not {"DSK001", "DSK002"} & set(verdict.passed)
    assert verdict.ok


IGNORES = f"# prime-train: ignore[DSK002]\n# prime-train: ignore[MOD001, BAT001, XYZ001]\n{UNEVEN}[optim]\nlr = 0.0\n"


@pytest.mark.parametrize("text", [BASE, UNEVEN, IGNORES, "x = = 1\n", BASES["prime-rl 2026-08"]])
@pytest.mark.parametrize("with_facts", [True, False])
def test_judging_in_two_parts_gives_the_verdict_of_one(text: str, with_facts: bool) -> None:
    reading = detect.read(text, "config.toml")
    facts = facts_of({}, reading.run) if with_facts and reading.run is not None else None
    whole, parts = judge(reading, facts), judge_rest(reading, judge_config(reading), facts)
    assert sorted(parts.passed) == sorted(whole.passed)
    assert sorted(parts.skipped) == sorted(whole.skipped)
    assert parts._replace(passed=(), skipped=()) == whole._replace(passed=(), skipped=())


def test_only_keeps_what_is_asked_for() -> None:
    verdict = lint(UNEVEN + "[optim]\nlr = 0.0\n", "run.toml")
    assert codes(verdict.only(("BAT",), ())) == ["BAT001"]
    assert codes(verdict.only(None, ("BAT001",))) == ["CFG004"]
    assert codes(verdict.only(("BAT", "CFG"), ("BAT",))) == ["CFG004"]
    assert all(code.startswith("BAT") for code in verdict.only(("BAT",), ()).passed)


def test_a_family_has_one_code() -> None:
    for code, rule in RULES.items():
        assert code == rule.code
        assert code[:3].isalpha()
        assert code[:3].isupper()
        assert code[3:].isdigit()
    written = {code: rule for code, rule in RULES.items() if rule.family != DOOMED}  # each of its tables has a code
    assert len({(rule.family, code[:3]) for code, rule in written.items()}) == len(
        {rule.family for rule in written.values()}
    )
    assert needs() == {need for rule in RULES.values() for need in (*rule.needs, *rule.uses)}


def test_a_rule_may_not_read_a_fact_it_does_not_name() -> None:
    with pytest.raises(ValueError, match="does not name"):
        known(NotKnown("not requested"))


def test_findings_of_one_rule_are_limited() -> None:
    findings = lint(BASE + "".join(f"k{number} = 1\n" for number in range(5000)), "t.toml").findings
    assert len(findings) == 1000
    assert sum("more than 1000 of these" in finding.what for finding in findings) == 1


def test_gpus_are_counted_if_nothing_else_is_known_of_the_machine() -> None:
    two = VisibleGpus((Gpu("NVIDIA H200", 150754820096, (9, 0)),) * 2)
    facts = replace(GOOD_MACHINE, gpus=two, cpu=NotKnown("--gpus judges for another machine"))
    text = BASE + "[parallel]\nprocesses = 4\n"
    assert "PAR002" in codes(validate(text, "run.toml", facts))
    assert "PAR002" not in codes(validate(text, "run.toml", replace(facts, gpus=VisibleGpus(()))))
