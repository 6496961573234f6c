"""The registry of environments: its shape, its sources, and what it answers about ids as configs write them."""

from __future__ import annotations

import datetime

import pytest

from prime_train.registry.known import KnownEnvironment, known_environment, known_environments


def test_there_are_twenty_five_or_more_and_no_name_twice() -> None:
    names = [name for entry in known_environments() for name in entry.names]
    assert len(known_environments()) >= 25
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", known_environments(), ids=lambda entry: entry.names[0])
def test_each_has_a_source_a_date_and_only_known_words(entry: KnownEnvironment) -> None:
    assert entry.turns in ("single", "multi")
    assert entry.executor in ("none", "local", "sandbox", "service")
    assert "@" in entry.source
    datetime.date.fromisoformat(entry.as_of)
    assert entry.prompt_tokens is None or 64 <= entry.prompt_tokens <= 131_072
    assert entry.is_multi_turn or not entry.tools, "a call and its result are two turns"
    assert all(name == name.lower() and "_" not in name for name in entry.names)


@pytest.mark.parametrize(
    "written", ["math-python", "primeintellect/math_python@0.1.2", "math-python-v1", "Math-Python"]
)
def test_an_id_is_found_however_a_config_writes_it(written: str) -> None:
    found = known_environment(written)
    assert found is not None
    assert (found.names[0], found.tools, found.is_remote) == ("math-python", True, True)


def test_what_is_not_listed_is_not_judged() -> None:
    assert known_environment("") is None
    assert known_environment("my-own") is None


def test_an_environment_without_a_published_limit_has_no_prompt_length() -> None:
    wordle = known_environment("wordle")
    assert wordle is not None
    assert (wordle.prompt_tokens, wordle.is_multi_turn, wordle.tools, wordle.is_remote) == (None, True, False, False)
