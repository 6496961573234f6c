"""The rules on a key are found from the text of the rules."""

from __future__ import annotations

import pytest

from prime_train.rules.explain import BASES, SCRIPT, base_of, explain
from prime_train.rules.families import load_all
from prime_train.rules.keys import find_near_keys, find_rules, is_key
from prime_train.rules.rule import Rule
from prime_train.toml.document import Document
from tests.unit.rules.examples import generation_of, judged


def codes_on(key: str) -> set[str]:
    return {rule.code for rule in find_rules(key)}


# The field of their findings is in a fact or in the traits of a format.
_BY_FACT_OR_TRAIT = ("DSK002", "DSK003", "DSK004", "PKG003", "SRV001", "SRV002", "ENV002", "ENV003")


@pytest.mark.parametrize(
    "rule", [rule for rule in load_all().values() if rule.reads_run and rule.code not in _BY_FACT_OR_TRAIT]
)
def test_a_rule_is_on_the_keys_at_which_it_reports(rule: Rule) -> None:
    for example in explain(rule).bad:
        if base_of(example) == SCRIPT:
            continue
        for finding in judged(example, generation_of(example)).findings:
            if finding.code == rule.code and finding.field:
                around = finding.key.rpartition(".")[0]  # of a free name, such as that of a variable
                assert rule.code in codes_on(finding.key) | codes_on(around)


def test_a_table_has_the_rules_of_its_keys() -> None:
    assert codes_on("optim") >= codes_on("optim.lr") | codes_on("optim.beta2")
    assert codes_on("data.sources.0.path") == codes_on("data.sources.path")


def test_a_key_that_only_keeps_other_rules_silent_is_not_the_rule_s() -> None:
    assert any("[optim]" in example for example in explain(load_all()["TSK001"]).bad)
    assert "TSK001" not in codes_on("optim.lr")


def test_keys_of_every_format_are_known() -> None:
    for text in BASES.values():
        for table, below in Document.parse(text, "config.toml").values.items():
            for name in below if isinstance(below, dict) else ():
                assert is_key(f"{table}.{name}")
    assert not is_key("optim.beta3")
    assert not is_key("optim.")


def test_near_keys_are_legal() -> None:
    near = find_near_keys("optim.beta3")
    assert {"optim.beta1", "optim.beta2"} <= {*near}
    assert all(map(is_key, near))
