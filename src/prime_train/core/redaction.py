"""Finds the secrets in an environment and masks them in texts. Pure; standard library only.

Every writer of text that may contain program output, addresses or arguments uses this module: events, launches,
reports, evidence, crash files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "•••"
_SHORTEST_SECRET = 4  # masking a shorter value would damage every text, and protect nothing
_SHORTEST_LINE = 8  # of a multi-line secret, such as a private key: "-----" alone would match everywhere
_SHORTEST_USER = 16  # https://TOKEN@host: a longer user name is a token
_NAME = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|_PAT|_DSN|WEBHOOK(?:_URL)?)(?:_?\d+)?\Z",
    re.IGNORECASE,
)
_WORDS = frozenset({"true", "false", "none", "null", "auto", "yes"})  # HF_HUB_DISABLE_IMPLICIT_TOKEN=true is a switch

# The prefixes that issuers document: GitHub, GitLab, Hugging Face, OpenAI and Anthropic, AWS, Slack, Google,
# Prime Intellect.
ISSUED = (
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abpr]-[\w-]{10,}|AIza[\w-]{30,}|pit_[\w-]{16,})"
)
LOGIN = r"://[^/\s:@]+:[^/\s@]{3,}@"
PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
_SHAPES = re.compile(rf"{ISSUED}|{LOGIN}|{PRIVATE_KEY}(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")
_USER = re.compile(r"://([^/\s:@]+)(?::([^/\s@]*))?@")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret: by its name (WANDB_API_KEY, HF_TOKEN), or because its URL has a login."""
    return (bool(_NAME.search(name)) and value.lower() not in _WORDS) or bool(_logins(value))


def secrets(environment: Mapping[str, str], names: Iterable[str | None] = ()) -> tuple[str, ...]:
    """The secret values of an environment, longest first, in every form that a text may contain.

    `names`: variables that are secret regardless of their names.
    """
    named = frozenset(names)
    found: set[str] = set()
    for name, value in environment.items():
        if name in named or (_NAME.search(name) and value.lower() not in _WORDS):
            found.update(_forms(value))
        for login in _logins(value):
            found.update(_forms(login))
    return tuple(sorted((value for value in found if len(value) >= _SHORTEST_SECRET), key=len, reverse=True))


def _forms(value: str) -> set[str]:
    """The value itself, in JSON, in a URL, and line by line."""
    import json  # lazy, because a lint needs only the patterns
    from urllib.parse import quote

    lines = (line for line in value.splitlines() if len(line.strip()) >= _SHORTEST_LINE)
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], *lines}
    return forms | {quote(value, safe="", errors="surrogatepass")}


def _logins(value: str) -> list[str]:
    """The passwords in the URLs of a text, and the tokens in place of user names."""
    if "@" not in value:
        return []
    from urllib.parse import unquote

    found = []
    for user, password in _USER.findall(value):
        found += [unquote(password), password] if password else []
        found += [user] if not password and len(user) >= _SHORTEST_USER else []
    return found


def redact(text: str, hidden: Iterable[str] = ()) -> str:
    """`text` with the hidden values masked, and every text in the form of a token, a login or a private key."""
    pattern = "|".join(re.escape(value) for value in hidden)
    text = re.sub(pattern, MASK, text) if pattern else text
    return _SHAPES.sub(lambda found: f"://{MASK}@" if found[0].startswith("://") else MASK, text)


def redact_all(document: Any, hidden: Iterable[str] = ()) -> Any:
    """A JSON document with `redact` applied to every string but the keys."""
    hidden = tuple(hidden)
    match document:
        case str():
            return redact(document, hidden)
        case Mapping():
            return {key: redact_all(value, hidden) for key, value in document.items()}
        case list() | tuple():
            return [redact_all(value, hidden) for value in document]
        case _:
            return document
