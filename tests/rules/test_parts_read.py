from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from prime_train.config.detect import read
from prime_train.config.parsed_config import Earlier
from prime_train.config.prime_rl.alike import EarlierFiles
from prime_train.rules.judge import judge, lint
from prime_train.rules.parts_read import silent_rules
from prime_train.rules.rule import RULES
from prime_train.spec import RunSpec
from tests.config.prime_rl.files import RL_2026_08


def reading_and_run() -> tuple[Earlier, RunSpec]:
    reading = read(RL_2026_08, "rl.toml")
    judge(reading)  # which loads the rules
    assert reading.run is not None
    return Earlier(reading), reading.run


def test_each_rule_that_found_nothing_is_silent_on_the_same_run() -> None:
    earlier, run = reading_and_run()
    on_runs = [rule for rule in RULES.values() if rule.reads_run and not rule.needs]
    assert silent_rules(earlier, run) == {rule.code for rule in on_runs if not list(rule.check(earlier.reading, None))}


@pytest.mark.parametrize("part", [field.name for field in fields(RunSpec)])
def test_a_rule_that_is_silent_without_a_part_does_not_read_it(part: str) -> None:
    """The part is replaced by a value that raises an error where it is used."""
    earlier, run = reading_and_run()
    other: dict[str, Any] = {part: object()}
    broken = replace(run, **other)
    for code in silent_rules(earlier, broken):
        assert list(RULES[code].check(earlier.reading._replace(run=broken), None)) == []


def test_a_part_that_is_equal_and_not_the_same_counts_as_different() -> None:
    earlier, run = reading_and_run()
    assert silent_rules(earlier, replace(run, run=replace(run.run))) < silent_rules(earlier, run)


def test_the_rules_on_equal_parts_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lint(RL_2026_08, "rl.toml")  # loads the rules
    calls: Counter[str] = Counter()

    def counted(code: str, check: Any) -> Any:
        def call(reading: Any, facts: Any) -> Iterator[Any]:
            calls[code] += 1
            return iter(check(reading, facts))

        return call

    for rule in list(RULES.values()):
        monkeypatch.setitem(RULES, rule.code, rule._replace(check=counted(rule.code, rule.check)))
    earlier = EarlierFiles()
    for steps in range(40, 50):
        lint(RL_2026_08.replace("max_steps = 40", f"max_steps = {steps}"), "rl.toml", None, earlier)
    again = {code for code, count in calls.items() if count > 2 and RULES[code].reads_run}
    assert len(again) < len(RULES) / 4  # the rules that read run.max_steps
