"""A lint leaves out only families that have nothing to say without facts, or nothing to say on a run.toml."""

from __future__ import annotations

from prime_train.rules import run_toml, scripts, static
from prime_train.rules.catalogue import FAMILIES, RULES
from prime_train.rules.explain import SCRIPT, base_of, explain

_ALWAYS = {"ignores"}  # the judge imports it


def _names(families: tuple[object, ...]) -> set[str]:
    return {getattr(family, "__name__", "").rpartition(".")[2] for family in families}


def test_static_families_are_those_with_a_rule_that_needs_no_fact() -> None:
    static_families = {rule.family for rule in RULES.values() if not rule.needs}
    assert static_families - _ALWAYS == _names(static.FAMILIES) | _names(scripts.FAMILIES)
    assert static_families <= _names(FAMILIES) | _ALWAYS


def test_a_rule_with_an_example_on_a_run_toml_is_loaded_for_one() -> None:
    for rule in RULES.values():
        ours = [example for example in explain(rule).bad if base_of(example) == ""]
        if not rule.needs and ours:
            serves = all("[inference]" in example for example in ours)  # then every family is loaded
            assert rule.family in _names(static.FAMILIES if serves else run_toml.FAMILIES) | _ALWAYS, rule.code


def test_a_rule_is_loaded_for_a_script_where_it_has_an_example_of_one_and_else_where_it_judges_every_file() -> None:
    with_example = {
        rule.family
        for rule in RULES.values()
        if any(base_of(example) == SCRIPT for example in (*explain(rule).bad, *explain(rule).good))
    }
    assert with_example <= _names(scripts.FAMILIES)
    assert with_example.isdisjoint(_names(static.FAMILIES) - {"schema", "secrets"})
