"""A lint imports every family that can report something on its file, and no family that only other files need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prime_train.rules.explain import SCRIPT, base_of, explain
from prime_train.rules.families import load_all

_ALWAYS = {"ignores"}  # the judge imports it


def _loaded(function: str) -> set[str]:
    """The families that one function of families.py imports in a process of its own."""
    program = (
        f"from prime_train.rules import families; families.{function}(); "
        "print(*{rule.family for rule in families.RULES.values()})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def for_config() -> set[str]:
    return _loaded("load_for_config")


@pytest.fixture(scope="module")
def for_script() -> set[str]:
    return _loaded("load_for_script")


def test_a_lint_loads_the_families_with_a_rule_that_needs_no_fact(for_config: set[str], for_script: set[str]) -> None:
    without_facts = {rule.family for rule in load_all().values() if not rule.needs}
    assert without_facts - _ALWAYS == for_config | for_script


def test_a_rule_with_an_example_on_a_run_toml_is_loaded_for_one(for_config: set[str]) -> None:
    for_run_toml = _loaded("load_for_run_toml")
    for rule in load_all().values():
        examples = [example for example in explain(rule).bad if base_of(example) == ""]
        if not rule.needs and examples:
            serves = all("[inference]" in example for example in examples)  # then every family is loaded
            assert rule.family in (for_config if serves else for_run_toml) | _ALWAYS, rule.code


def test_a_rule_with_an_example_on_a_run_of_chats_or_rewards_is_loaded_for_one(for_config: set[str]) -> None:
    for_run_toml = _loaded("load_for_run_toml")  # a run of kind sft; one of kind rl loads every family
    for rule in load_all().values():
        bases = {base_of(example) for example in explain(rule).bad}
        if not rule.needs:
            assert "sft" not in bases or rule.family in for_run_toml, rule.code
            assert "rl" not in bases or rule.family in for_config, rule.code


def test_a_script_loads_the_families_with_an_example_of_one(for_config: set[str], for_script: set[str]) -> None:
    with_example = {
        rule.family
        for rule in load_all().values()
        if any(base_of(example) == SCRIPT for example in (*explain(rule).bad, *explain(rule).good))
    }
    assert with_example <= for_script
    for_both = {rule.family for rule in load_all().values() if rule.code.startswith(("CFG", "SEC"))}
    assert with_example.isdisjoint(for_config - for_both)
