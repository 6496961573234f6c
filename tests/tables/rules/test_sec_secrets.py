"""Secrets are found by what they look like and where they stand, and are never repeated."""

from __future__ import annotations

import json

import pytest

from prime_train.rules.explain import BASES
from prime_train.rules.judge import Verdict, lint
from prime_train.views import findings as views

BASE = BASES["prime-rl 2026-08"]
TOKEN = "hf_" + "aB3" * 8


def codes(verdict: Verdict) -> list[str]:
    return [finding.code for finding in verdict.findings]


@pytest.mark.parametrize(
    "line",
    [
        f'HF_TOKEN = "{TOKEN}"',
        f'NOTE = "use {TOKEN} here"',
        'WANDB_API_KEY = "' + "0123456789" * 4 + '"',
        'URL = "https://ada:correcthorse@example.org/x"',
        'AWS = "AKIA' + "ABCDEFGH12345678" + '"',
        'DB_PASSWORD = "correct-horse-battery"',
    ],
)
def test_a_secret_is_found_and_not_shown(line: str) -> None:
    verdict = lint(f"{BASE}\n[trainer.env_vars]\n{line}\n", "rl.toml", "2026-08")
    assert codes(verdict) == ["SEC001"]
    secret = line.partition('"')[2].rstrip('"')
    shown = (views.full(verdict), views.concise(verdict), views.github(verdict))
    assert all(secret not in text for text in shown)
    assert secret not in json.dumps([finding.what + finding.fix + finding.written for finding in verdict.findings])


@pytest.mark.parametrize(
    "line",
    [
        'API_KEY_VAR = "VLLM_API_KEY"',
        'WANDB_API_KEY = "${WANDB_API_KEY}"',
        'TOKENIZERS_PARALLELISM = "false"',
        'MAX_TOKEN = "4096"',
        'DB_PASSWORD = ""',
        'MODEL = "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT"',
        'URL = "https://example.org:8443/a@b"',
    ],
)
def test_text_that_resembles_a_secret_is_not_found(line: str) -> None:
    assert codes(lint(f"{BASE}\n[trainer.env_vars]\n{line}\n", "rl.toml", "2026-08")) == []


def test_no_other_finding_shows_a_secret() -> None:
    value = "0123456789abcdef0123456789abcdef01234567"
    text = BASES[""].replace("[data]", f'api_key = "{value}"\nlog = {{api_key = "{value}", x = 1}}\n[data]')
    verdict = lint(text, "run.toml")
    assert {finding.code for finding in verdict.findings} == {"SEC001", "CFG002"}
    assert value[:12] not in views.full(verdict, texts={"run.toml": text})
