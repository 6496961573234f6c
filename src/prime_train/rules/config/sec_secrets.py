"""Secrets in a config file. Never shows a secret that it found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Finding, Severity
from prime_train.core.redaction import MASK, find
from prime_train.rules.rule import file_rule
from prime_train.toml.document import KeyPath

CODE = "SEC001"
_SHORTEST = 8
_SHOWN_CHARS = 12  # a text that ends before them shows too little, and fewer would be those of every https address
_KEY = r"(?i)(?:^|[_-])(?:api[_-]?key|apikey|token|secret|password|passwd|access[_-]?key)$"
_LOOKS_SECRET = r"[A-Za-z0-9+/=_.-]{16,}"
_VARIABLE = r"\$|\A[A-Z][A-Z0-9_]*\Z"  # a reference to a variable, not a value


@file_rule(CODE, Severity.WARNING)
def secret_in_file(reading: Reading) -> Iterator[Fault]:
    """A config must not hold secrets.

    a config is committed, copied into every run directory and sent to the experiment tracker, and the secret with it

    Source: the forms of tokens in registry/secrets.toml, from detect-secrets 1.5.0 and from the issuers' own pages.

    Bad (prime-rl 2026-08):
        [orchestrator.env_vars]
        WANDB_API_KEY = "0123456789abcdef0123456789abcdef01234567"
    Bad (prime-rl 2026-08):
        [orchestrator.model.client.headers]
        Authorization = "Bearer hf_abcdefghijklmnopqrstuvwx"
    Good (prime-rl 2026-08):
        [orchestrator.model.client]
        api_key_var = "VLLM_API_KEY"
    """
    if reading.document.fault is not None:
        return
    for key, value in _find_secrets(reading.document.values):
        name = next(str(part) for part in reversed(key) if isinstance(part, str))
        yield Fault(
            CODE,
            key,
            f"a secret of {len(value)} characters",
            f"revoke it, and pass {name} through the environment",
            hidden=True,
        )


def mask_secrets(findings: list[Finding], values: Mapping[str, Any]) -> list[Finding]:
    """The findings without the secrets in `values`, whose beginning another rule may show."""
    begins = [value[:_SHOWN_CHARS] for _, value in _find_secrets(values)]

    def mask(text: str) -> str:
        for begin in begins:
            text = re.sub(rf"{re.escape(begin)}[^\"'\s]*", MASK, text) if begin in text else text
        return text

    return [
        finding._replace(written=mask(finding.written), what=mask(finding.what), fix=mask(finding.fix))
        for finding in findings
    ]


def _find_secrets(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    return ((key, value) for key, value in _strings(values, ()) if _is_secret(str(key[-1]), value))


def _strings(value: Mapping[str, Any], key: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every string below a table. A number costs no call, because there may be a million.

    It keeps its own stack, because dotted keys nest deeper than Python's recursion limit.
    """
    entered: list[tuple[KeyPath, Iterator[tuple[str | int, Any]]]] = [(key, iter(value.items()))]
    while entered:
        key, items = entered[-1]
        for name, below in items:
            if isinstance(below, str):
                yield (*key, name), below
            elif isinstance(below, dict | list):
                entered.append(((*key, name), iter(below.items() if isinstance(below, dict) else enumerate(below))))
                break
        else:
            entered.pop()


@lru_cache(maxsize=4096)  # the files of a folder have most of their strings in common
def _is_secret(name: str, value: str) -> bool:
    if len(value) < _SHORTEST:
        return False
    if find(value):
        return True
    named = re.search(_KEY, name) is not None
    return named and re.fullmatch(_LOOKS_SECRET, value) is not None and re.search(_VARIABLE, value) is None
