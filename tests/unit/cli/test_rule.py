from __future__ import annotations

import json

import pytest

from prime_train.cli.rule import rule
from prime_train.core.errors import UserError
from prime_train.rules.families import load_all


def test_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rule()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["code", "severity", "needs", "rule"]
    assert [line.split()[0] for line in lines[1:]] == sorted(load_all())


def test_one_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    rule("dsk001")
    page = capsys.readouterr().out
    assert page.startswith("DSK001  error  The checkpoints that are kept")
    assert "validate and run, because it needs facts: save_dir, model_folder, tokenizer_folder" in page
    assert "\nBad:\n    [facts.save_dir]\n    free_bytes" in page
    assert "\nGood:\n    [checkpoint]\n" in page


def test_a_signature_of_diagnose_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    rule("vllm018")
    page = capsys.readouterr().out
    assert page.startswith("VLLM018  bug  a process of vLLM")
    assert "the run is started again" in page
    rule("vllm018", as_json=True)
    (one,) = json.loads(capsys.readouterr().out)["signatures"]
    assert (one["code"], one["retry"]) == ("VLLM018", "yes")


@pytest.mark.parametrize("code", load_all())
def test_every_rule_has_a_page_and_json(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule(code)
    assert capsys.readouterr().out.startswith(code)
    rule(code, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1
    assert [entry["code"] for entry in document["rules"]] == [code]
    assert document["rules"][0]["bad"]


def test_an_unknown_code_names_the_nearest() -> None:
    with pytest.raises(UserError) as raised:
        rule("BAT01")
    assert raised.value.exit_code == 2
    assert "BAT001" in raised.value.fix


@pytest.mark.parametrize(
    ("key", "codes"),
    [
        ("optim.beta2", ["OPT007"]),  # its function names the field
        ("trainer.optim.betas2", ["OPT007"]),  # of prime-rl, for the same field
        ("orchestrator.env.0.args.max_turns", ["LEN011"]),  # only an example shows the key
        ("checkpoint.async", []),
    ],
)
def test_the_rules_on_a_key_are_listed(key: str, codes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rule(key=key)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == codes
    rule(key=key, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["key"]) == (1, key)
    assert [entry["code"] for entry in document["rules"]] == codes


@pytest.mark.parametrize(("key", "near"), [("optim.beta", "optim.beta1 or optim.beta2"), ("", ""), ("zzzz", "")])
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with pytest.raises(UserError) as raised:
        rule(key=key)
    assert raised.value.exit_code == 2
    assert near in raised.value.why


def test_a_code_and_a_key_are_refused_together() -> None:
    with pytest.raises(UserError, match="both a code and --key"):
        rule("BAT001", key="optim.lr")
