"""What an installed prime-rl refuses, asked from a stand-in that has the same pydantic shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.config.parsed_config import REFUSED
from prime_train.facts import installed_prime_rl
from prime_train.facts.facts import NotKnown
from prime_train.facts.installed_prime_rl import Answered, PrimeRlRefusal
from tests.system.facts.test_prime_rl_schema import STANDIN, interpreter

GOOD = '[trainer]\n[orchestrator]\n[[orchestrator.train.source]]\nid = "a"\n'


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return interpreter(tmp_path_factory.mktemp("venv"), STANDIN)


def asked(python: str, text: str) -> Answered:
    answered = installed_prime_rl.ask(python, "rl", detect.read(text, "rl.toml").document.values)
    assert isinstance(answered, Answered)
    return answered


def test_what_its_classes_accept_is_no_refusal(python: str) -> None:
    assert asked(python, GOOD) == Answered("0.9.0", ())


def test_each_refusal_has_its_key(python: str) -> None:
    refused = asked(python, GOOD + '[orchestrator.train.sampling]\ntemperature = 3.0\n[trainer.optim]\nlr = "fast"\n')
    places = {one.place for one in refused.refusals}
    assert ("orchestrator", "train", "sampling", "temperature") in places
    assert any("samples noise" in one.message for one in refused.refusals)


def test_a_refused_combination_names_the_table(python: str) -> None:
    text = GOOD.replace("[orchestrator]\n", "[orchestrator]\nbatch_size = 10\ngroup_size = 4\n")
    assert asked(python, text).refusals == (
        PrimeRlRefusal(("orchestrator",), "Value error, batch_size must divide by group_size"),
    )


def test_a_refusal_becomes_a_finding_at_the_key_in_the_file() -> None:
    reading = detect.read(GOOD + "[orchestrator.train.sampling]\ntemperature = 1.5\n", "rl.toml", "2026-08")
    refused = PrimeRlRefusal(
        ("orchestrator", "train", "sampling", "function-after", "temperature"), "Value error, too warm"
    )
    (fault,) = installed_prime_rl.faults(Answered("0.9.0", (refused,)), reading)
    assert (fault.code, fault.key) == (REFUSED, ("orchestrator", "train", "sampling", "temperature"))
    assert "too warm" in fault.what
    assert "0.9.0" in fault.why


def test_a_refusal_that_a_fault_of_the_file_explains_is_not_repeated() -> None:
    text = GOOD.replace("[orchestrator]\n", "[orchestrator]\nbatch_size = 10\ngroup_size = 4\n")
    reading = detect.read(text, "rl.toml", "2026-08")
    refused = PrimeRlRefusal(("orchestrator",), "Value error, batch_size must divide by group_size")
    assert list(installed_prime_rl.faults(Answered("0.9.0", (refused,)), reading)) == []


def test_an_interpreter_without_prime_rl_gives_the_reason(tmp_path: Path) -> None:
    answered = installed_prime_rl.ask(interpreter(tmp_path, None), "rl", {})
    assert isinstance(answered, NotKnown)
    assert "no config class" in answered.reason


def test_values_that_json_does_not_have_are_sent_as_text(python: str) -> None:
    assert "max_steps" in {one.place[0] for one in asked(python, "max_steps = 2026-01-01\n" + GOOD).refusals}
