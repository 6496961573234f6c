"""Finds the secrets that a command line or a script of bash gives by name: NAME=value, --flag value, curl -u. Pure.

What has the form of a token is found by `redact`. A value that is read elsewhere, as $HF_TOKEN, is no secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from prime_train.core.redaction import is_secret, is_secret_name

# NAME=value, +group.name=value, ${NAME:-value}, {name: value} and "Name: value", but not ${NAME:?message}. A name
# behind $ is read, and the word behind Authorization a scheme. The value is looked at and not passed, because
# https://HOST/?token=value and --env=NAME=value have a name of their own.
_VALUE = r"""(?=\s*["']?(?:(?i:bearer|basic|token)\s+)?+([^\s"',;}]+))"""
_ASSIGNED = re.compile(rf"(?<![\w.$-])([\w.-]+)(?::-|:?=){_VALUE}")
_KEYED = re.compile(rf"""(?:^\s*|[{{,]\s*)["']?([\w.-]+)["']?\s*:(?=[^?+=-]){_VALUE}""")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]+")
_READ = (
    "$",
    "`",
    "<",
    "./",
    "../",
    "~/",
)  # a variable, the output of a command, a blank to fill in, the path of a file
_COUNTED = ("TOKEN", "KEY")  # a number there is a count: flops_per_token=1e9
_NUMBER = re.compile(r"[\d.eE+-]{1,16}")
_TAKES_TEXT = re.compile(r"-[a-z]*c")
_INTERPRETER = re.compile(r"(?:(python|pypy)[\d.]*|(?:ba|z|da|k)?sh)")
_EXPANSION = re.compile(r"\$\{[^}]*\}")
_LOGIN_FLAG = re.compile(r"--user|--proxy-user|-[A-Za-z]*[uU]")
_JOINED_LOGIN = re.compile(r"(--user=|--proxy-user=|-[uU])(.+)")
_ENDS = re.compile(r"[\s;&|()]+")
_MOST_DEPTH = 4  # texts for a shell in each other


def find_named(script: str, depth: int = 0) -> Iterator[str]:
    """The name of each secret whose value is in the script: of a variable, a flag or a header, or `curl -u`."""
    for line in script.replace("\\\n", " ").splitlines():
        words = _split(line)
        yield from (name for _, name in find_in_words(words, depth))
        if any(word.rpartition("/")[2] == "curl" for word in words) and any(map(_has_password, _list_logins(words))):
            yield "curl -u"


def find_in_words(words: Sequence[str], depth: int = 0) -> Iterator[tuple[int, str]]:
    """(place of the word, name) of each secret in the words of a command, also in the text that a shell gets.

    The code behind `python -c` is left out, because its names are arguments: sorted(rows, key=lambda row: row.step).
    """
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        reader = _reader(words[: place - 1]) if place > 1 and _TAKES_TEXT.fullmatch(before) else ""
        if reader == "python":
            continue
        if reader and depth < _MOST_DEPTH:
            yield from ((place, name) for name in find_named(word, depth + 1))
            continue
        if _FLAG.fullmatch(before) and not word.startswith("-") and _is_given(before, word):
            yield place, before
        pairs = (*_ASSIGNED.findall(word), *_KEYED.findall(word))
        yield from ((place, name) for name, value in pairs if _is_given(name, value))


def _is_given(name: str, value: str) -> bool:
    """Whether the value is a secret because of its name: no variable, path, switch or count."""
    plain = name.lstrip("-").replace("-", "_")
    if value.startswith(_READ) or (plain.upper().endswith(_COUNTED) and _NUMBER.fullmatch(value)):
        return False
    return is_secret_name(plain) and is_secret(plain, value)


def _reader(words: Sequence[str]) -> str:
    """Who reads the text behind -c: "python", "shell", or "" if that is not known."""
    found = (_INTERPRETER.fullmatch(word.rpartition("/")[2]) for word in reversed(words))
    last = next(filter(None, found), None)
    return "" if last is None else "python" if last[1] else "shell"


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
