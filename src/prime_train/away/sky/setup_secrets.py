"""Finds the secrets that lines of bash give by name: NAME=value, --flag value, and curl's -u USER:PASSWORD. Pure.

What has the form of a token is found by `redact`. A value that the shell reads elsewhere, as $HF_TOKEN, is no secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

from prime_train.core.redaction import is_secret, is_secret_name

# NAME=value, name: value and ${NAME:-value}, but not ${NAME:?message}. A name behind $ is read, and the word behind
# Authorization a scheme. The value is looked at and not passed: https://HOST/?token=value has a name of its own.
_ASSIGNED = re.compile(
    r"""(?i)(?<![\w.$-])([\w.-]+)(?=["']?\s*(?::-|:=|=|:(?![?+]))\s*["']?(?:(?:bearer|basic|token)\s+)?+([^\s"',;}]+))"""
)
_FLAG = re.compile(r"-[\w.-]{2,}")
_READ = ("$", "`")
_EXPANSION = re.compile(r"\$\{[^}]*\}")
_LOGIN_FLAG = re.compile(r"--user|--proxy-user|-[A-Za-z]*[uU]")
_JOINED_LOGIN = re.compile(r"(--user=|--proxy-user=|-[uU])(.+)")
_ENDS = re.compile(r"[\s;&|()]+")


def find_named(script: str) -> Iterator[str]:
    """The name of each secret whose value is in the script: of a variable, a flag or a header, or `curl -u`."""
    for line in script.replace("\\\n", " ").splitlines():
        for name, value in _ASSIGNED.findall(line):
            if not value.startswith(_READ) and is_secret(name, value) and is_secret_name(name):
                yield name
        words = _split(line)
        for flag, value in pairwise(words):
            name = flag.lstrip("-").replace("-", "_")
            is_pair = _FLAG.fullmatch(flag) and not value.startswith(("-", *_READ))
            if is_pair and is_secret_name(name) and is_secret(name, value):
                yield flag
        if any(word.rpartition("/")[2] == "curl" for word in words) and any(map(_has_password, _list_logins(words))):
            yield "curl -u"


def _split(line: str) -> list[str]:
    """The words of a line, without ; && | and brackets. Those of a line with an open quote are split at each space."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return [word.strip("\"'") for word in _ENDS.split(line)]


def _list_logins(words: list[str]) -> Iterator[str]:
    for flag, value in pairwise(words):
        if _LOGIN_FLAG.fullmatch(flag):
            yield value
    for word in words:
        joined = _JOINED_LOGIN.fullmatch(word)
        if joined:
            yield joined[2]


def _has_password(login: str) -> bool:
    password = _EXPANSION.sub("$", login).partition(":")[2]
    return bool(password) and not password.startswith(_READ)
