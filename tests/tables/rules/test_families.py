"""A lint imports every family that can report something on its file, and no family that only other files need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prime_train.config.foreign.recognise import formats
from prime_train.registry.foreign import program_tables
from prime_train.rules.explain import SCRIPT, base_of, explain
from prime_train.rules.families import load_all, load_for_foreign
from prime_train.rules.judge import lint
from tests.unit.rules.examples import generation_of, parse

_ALWAYS = {"ignores"}  # the judge imports it


def _loaded(call: str) -> set[str]:
    """The families that one call in families.py imports in a process of its own."""
    program = (
        f"from prime_train.rules import families; families.{call}; "
        "print(*{rule.family for rule in families.RULES.values()})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def for_config() -> set[str]:
    return _loaded("load_for_config()")


@pytest.fixture(scope="module")
def for_script() -> set[str]:
    return _loaded("load_for_script()")


def test_a_lint_loads_the_families_with_a_rule_that_needs_no_fact(for_config: set[str], for_script: set[str]) -> None:
    without_facts = {rule.family for rule in load_all().values() if not rule.needs}
    for_foreign = {family for family in without_facts if family.startswith("foreign.")}
    assert without_facts - _ALWAYS - for_foreign == for_config | for_script


def test_the_families_on_files_of_other_programs_are_loaded_for_one() -> None:
    """Every format is asked for here; the tables of one format are a part of them."""
    codes = {rule.code for rule in load_all().values() if rule.family.startswith("foreign.")}
    judged = {name for table in program_tables().values() for doom in table.doomed for name in doom.judges}
    assert codes <= {rule.code for rule in load_for_foreign(frozenset({*formats(), *judged}))}


def test_a_rule_with_an_example_on_a_run_toml_is_loaded_for_one(for_config: set[str]) -> None:
    for_run_toml = _loaded("load_for_dialect('prime-train')")
    for rule in load_all().values():
        examples = [example for example in explain(rule).bad if base_of(example) == ""]
        if not rule.needs and examples:
            serves = all("[inference]" in example for example in examples)  # then every family is loaded
            assert rule.family in (for_config if serves else for_run_toml) | _ALWAYS, rule.code


def test_a_rule_with_an_example_on_a_run_of_chats_or_rewards_is_loaded_for_one(for_config: set[str]) -> None:
    for_run_toml = _loaded("load_for_dialect('prime-train')")  # a run of kind sft; one of kind rl loads every family
    for rule in load_all().values():
        bases = {base_of(example) for example in explain(rule).bad}
        if not rule.needs:
            assert "sft" not in bases or rule.family in for_run_toml, rule.code
            assert "rl" not in bases or rule.family in for_config, rule.code


def test_a_rule_with_an_example_on_a_prime_rl_file_is_loaded_for_one() -> None:
    for_prime_rl = _loaded("load_for_dialect('prime-rl')")
    for rule in load_all().values():
        if not rule.needs and any(base_of(example).startswith("prime-rl") for example in explain(rule).bad):
            assert rule.family in for_prime_rl | _ALWAYS, rule.code


@pytest.mark.parametrize("kind", ["bad", "good"])
def test_no_other_family_finds_anything_in_a_prime_rl_file(kind: str) -> None:
    """Every rule is loaded in this process, so that those of a run.toml judge the examples, too."""
    family_of = {rule.code: rule.family for rule in load_all().values()}
    for_prime_rl = _loaded("load_for_dialect('prime-rl')") | _ALWAYS
    count = 0
    for rule in load_all().values():
        for example in getattr(explain(rule), kind):
            if base_of(example).startswith("prime-rl"):
                found = lint(parse(example)[0], "config.toml", generation_of(example)).findings
                assert {family_of[finding.code] for finding in found} <= for_prime_rl, (rule.code, example)
                count += 1
    assert count > 50


def test_a_script_loads_the_families_with_an_example_of_one(for_config: set[str], for_script: set[str]) -> None:
    with_example = {
        rule.family
        for rule in load_all().values()
        if any(base_of(example) == SCRIPT for example in (*explain(rule).bad, *explain(rule).good))
    }
    assert with_example <= for_script
    for_both = {rule.family for rule in load_all().values() if rule.code.startswith(("CFG", "SEC"))}
    assert with_example.isdisjoint(for_config - for_both)
