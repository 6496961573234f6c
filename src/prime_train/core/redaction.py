"""Finds the secrets that this process can read, and masks them in texts by value and by form. Keeps nothing.

Every writer of text that may contain program output, addresses or arguments uses this module: events, launches,
reports, evidence, crash files, and the output of every command. The forms are in registry/secrets.toml. Secrets are in
the environment, and in files that it names, without what is no regular file or larger than 64 KiB.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.installation import shipped

# ruff: noqa: PTH118 - paths are texts here

MASK = "•••"
_SHORTEST_SECRET = 4  # masking a shorter value would damage every text, and protect nothing
_SHORTEST_LINE = 8  # of a multi-line secret, such as a private key: "-----" alone would match everywhere
_SHORTEST_ENCODED = 9  # in base64 a shorter value has too few letters of its own
_SHORTEST_USER = 16  # https://TOKEN@host: a longer user name is a token
_NAME_ENDS = (
    *("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "AUTHORIZATION"),
    *("BEARER", "COOKIE", "_PWD", "_PASS", "_PAT", "_SAS", "_DSN", "WEBHOOK", "WEBHOOK_URL"),
)
# Keys of configs, in small letters as there: a text of a tokenizer, or the name of a column. Sources: transformers,
# SpecialTokensMixin and its processors; the data options of OpenRLHF, verl, slime and NeMo RL.
_OF_TOKENIZER = ("bos", "eos", "eot", "pad", "unk", "sep", "cls", "mask", "stop", "image", "video", "audio")
_OF_COLUMN = (
    *(
        "input",
        "output",
        "prompt",
        "question",
        "answer",
        "response",
        "text",
        "messages",
        "label",
        "reward",
        "reward_fn",
    ),
    *("chosen", "rejected", "image", "images", "video", "audio", "tool", "tools", "metadata", "system", "solution"),
)
_PLAIN_KEYS = frozenset({*(f"{name}_token" for name in _OF_TOKENIZER), *(f"{name}_key" for name in _OF_COLUMN)})
WORDS = frozenset({"true", "false", "none", "null", "auto", "yes"})  # HF_HUB_DISABLE_IMPLICIT_TOKEN=true is a switch
_PLAIN = r"[A-Za-z0-9_.~-]*"  # the same in JSON and in a URL; RFC 3986, section 2.3
_USER = r"://([^/\s:@]+)(?::([^/\s@]*))?@"
_KEY_BEGINS = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|PuTTY-User-Key-File-[23]:"
_KEY_ENDS = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-MAC:.*\n"
LONGEST_KEY = 16 * 1024  # characters of a private key: one of RSA with 16,384 bits has 12,800
_MOST_BYTES = 64 * 1024
_LONG_TEXT = 256 * 1024  # characters: in a shorter text to collect the letters takes longer than to search
# Where the programs of a run look for a login. Sources: huggingface.co/docs/huggingface_hub (HF_HOME, HF_TOKEN_PATH);
# docs.aws.amazon.com/cli (AWS_SHARED_CREDENTIALS_FILE); cloud.google.com/docs, Application Default Credentials;
# docs.npmjs.com, npmrc; docs.wandb.ai, wandb login (netrc); packaging.python.org, The .pypirc file.
_PLACES = (
    ("HF_TOKEN_PATH", "HF_HOME", "token", "~/.cache/huggingface/token"),
    ("HF_STORED_TOKENS_PATH", "HF_HOME", "stored_tokens", "~/.cache/huggingface/stored_tokens"),
    ("NETRC", "", "", "~/.netrc"),
    ("AWS_SHARED_CREDENTIALS_FILE", "", "", "~/.aws/credentials"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "application_default_credentials.json",
     "~/.config/gcloud/application_default_credentials.json"),
    ("NPM_CONFIG_USERCONFIG", "", "", "~/.npmrc"),
    ("PYPIRC", "", "", "~/.pypirc"),
)  # fmt: skip
_NETRC = r"\bpassword\s+(\S+)"  # re compiles a text when it is first used: most environments name no file
_ASSIGNED = r"""(?m)^[ \t]*(?:export[ \t]+)?["']?([\w./:-]+)["']?[ \t]*[:=][ \t]*["']?([^\s"',]{4,})"""


class Form(NamedTuple):
    """What the tokens of an issuer look like; registry/secrets.toml explains the fields."""

    id: str
    keywords: tuple[str, ...]
    pattern: str
    source: str
    any_case: bool = False


@cache
def forms() -> tuple[Form, ...]:
    import tomli  # here, because the watches of a run import this module and mask nothing

    with open(shipped("secrets.toml"), "rb") as file:
        return tuple(Form(**row | {"keywords": tuple(row["keywords"])}) for row in tomli.load(file)["form"])


def is_secret_name(name: str) -> bool:
    """Whether a variable or a key of a file has the name of a secret: WANDB_API_KEY, client_secret, TOKEN_2.

    A key for a token of a tokenizer, or for a column, is none: pad_token, --input-key, data.prompt_key.
    """
    upper = name.upper()  # a regular expression takes a millisecond to compile, which is much for a lint
    plain = upper.rstrip("0123456789")
    if not (plain if plain == upper else plain.removesuffix("_")).endswith(_NAME_ENDS):
        return False
    return name.rpartition(".")[2].lstrip("-").replace("-", "_") not in _PLAIN_KEYS


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret: by its name (WANDB_API_KEY, HF_TOKEN), or because its URL has a login."""
    is_named = is_secret_name(name) and value.lower() not in WORDS and len(value) >= _SHORTEST_SECRET
    return is_named or bool(_logins(value))


def secrets(environment: Mapping[str, str], names: Iterable[str | None] = ()) -> tuple[str, ...]:
    """The secret values of an environment, longest first, in every form that a text may contain.

    `names`: variables that are secret regardless of their names.
    """
    named = frozenset(names)
    found: set[str] = set()
    for name, value in environment.items():
        if name in named or (is_secret_name(name) and value.lower() not in WORDS):
            found.update(_forms_of(value))
        for part in (*_logins(value), *find(value)):
            found.update(_forms_of(part))
    return tuple(sorted((value for value in found if len(value) >= _SHORTEST_SECRET), key=len, reverse=True))


def _forms_of(value: str) -> set[str]:
    """The value itself, in JSON, in a URL, in base64, and line by line."""
    lines = (line for line in value.splitlines() if len(line.strip()) >= _SHORTEST_LINE)
    written = {value, *lines, *_in_base64(value)}
    if re.fullmatch(_PLAIN, value):
        return written
    import json  # here, because a lint has no time for the imports
    from urllib.parse import quote

    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return written | escaped | {quote(value, safe="", errors="surrogatepass")}


def _in_base64(value: str) -> set[str]:
    """The letters that depend on the value alone, at each of the three places where it may begin in a longer text."""
    from binascii import b2a_base64

    raw = value.encode(errors="surrogatepass")
    if len(raw) < _SHORTEST_ENCODED:
        return set()
    found: set[str] = set()
    for before in range(3):  # bytes of the text before the value in its first group of three
        letters = b2a_base64(bytes(before) + raw, newline=False).decode()
        own = letters[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        found |= {own, own.replace("+", "-").replace("/", "_")}
    return found


def _logins(value: str) -> list[str]:
    """The passwords in the URLs of a text, and the tokens in place of user names."""
    if "@" not in value:
        return []
    found = []
    for user, password in re.findall(_USER, value):
        found += [_unquoted(password), password] if password else []
        found += [user] if not password and len(user) >= _SHORTEST_USER else []
    return found


def _unquoted(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # here, because a lint has no time for the import

    return unquote(text)


def _searched(text: str) -> Iterable[re.Pattern[str]]:
    """The patterns of the forms whose keywords are in the text."""
    lowered = text.lower()
    # A table of thousands of rows has few letters, and without one of its letters no keyword is searched for.
    letters = frozenset(lowered) if len(text) > _LONG_TEXT else None
    for form in forms():
        searched = lowered if form.any_case else text
        for keyword in form.keywords:
            if (letters is None or letters.issuperset(keyword.lower())) and keyword in searched:
                yield re.compile(form.pattern)
                break


def find(text: str) -> list[str]:
    """The parts of a text that have the form of a secret."""
    matches = (match for pattern in _searched(text) for match in pattern.finditer(text))
    return [match[0][start:end] for match in matches for start, end in _spans(match)]


def _spans(match: re.Match[str]) -> list[tuple[int, int]]:
    """Where the secrets are in a match, relative to its start."""
    groups = [name for name in match.groupdict() if match[name] is not None]
    start = match.start()
    return [(match.start(name) - start, match.end(name) - start) for name in groups] or [(0, len(match[0]))]


def redact(text: str, hidden: Iterable[str] = ()) -> str:
    """`text` with the hidden values masked, and every text in the form of a token, a login or a private key.

    `hidden` is ordered from the longest value to the shortest.
    """
    for value in hidden:
        if value in text:
            text = text.replace(value, MASK)
    for pattern in _searched(text):
        text = pattern.sub(_mask, text)
    return text


def _mask(match: re.Match[str]) -> str:
    text = match[0]
    for start, end in reversed(_spans(match)):
        text = text[:start] + MASK + text[end:]
    return text


def redact_all(document: Any, hidden: Iterable[str] = ()) -> Any:
    """A JSON document with `redact` applied to every string; a key is masked only if it has the form of a secret."""
    hidden = tuple(hidden)
    match document:
        case str():
            return redact(document, hidden)
        case Mapping():
            masked = ((redact(key) if isinstance(key, str) else key, value) for key, value in document.items())
            return {key: redact_all(value, hidden) for key, value in masked}
        case list() | tuple():
            return mask_after_flags([redact_all(value, hidden) for value in document])
        case _:
            return document


def mask_after_flags(words: Sequence[Any]) -> list[Any]:
    """The words of a command, or any list, with each secret masked that is the word after its flag: --api-key VALUE."""
    masked = list(words)
    for place, (flag, value) in enumerate(pairwise(words), 1):
        is_pair = isinstance(flag, str) and flag.startswith("-") and isinstance(value, str)
        if is_pair and not value.startswith("-") and is_secret(flag.lstrip("-").replace("-", "_"), value):
            masked[place] = MASK
    return masked


def open_key(text: str) -> int | None:
    """Where a private key begins whose end is not in the text; None if there is none."""
    begin = None
    for match in re.finditer(_KEY_BEGINS, text):
        begin = match.start()
    return begin if begin is not None and re.search(_KEY_ENDS, text[begin:]) is None else None


class LineRedactor:
    """Masks a text that arrives in pieces. Holds back an incomplete line, and a private key until its end."""

    def __init__(self, hidden: Iterable[str] = ()) -> None:
        self._hidden = tuple(hidden)
        self._held = ""

    def feed(self, piece: str) -> str:
        """The masked text up to the end of the last complete line."""
        text = self._held + piece
        end = text.rfind("\n") + 1
        if len(text) - end > LONGEST_KEY:
            end = len(text)  # a line of this length is no line of a log
        begin = open_key(text[:end]) if "PRIVATE KEY" in text or "PuTTY" in text else None
        if begin is not None and end - begin <= LONGEST_KEY:
            end = text.rfind("\n", 0, begin) + 1
        self._held = text[end:]
        return redact(text[:end], self._hidden)

    def flush(self) -> str:
        rest, self._held = self._held, ""
        return redact(rest, self._hidden)


def own_secrets(names: Iterable[str | None] = (), environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The secret values of the environment and of the files that it names, longest first, in every form of a text.

    `names`: variables that are secret regardless of their names. `environment`: default: that of this process.
    """
    environment = os.environ if environment is None else environment
    read = {f"{number}_SECRET": value for number, value in enumerate(_in_files(environment))}
    return secrets({**environment, **read}, (*names, *read))


def mask_assigned(text: str) -> str:
    """`text` with the values masked that stand behind the name of a secret at the beginning of a line."""

    def mask(match: re.Match[str]) -> str:
        is_plain = match[2].startswith("$") or match[2].lower() in WORDS  # the name of a variable, or a switch
        if is_plain or not is_secret_name(match[1]):
            return match[0]
        start, end = match.span(2)
        return match[0][: start - match.start()] + MASK + match[0][end - match.start() :]

    return re.sub(_ASSIGNED, mask, text)


def _in_files(environment: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(set(_paths(environment))):
        text = ""
        with suppress(OSError, ValueError):  # too large, no regular file such as a pipe; ValueError: a null character
            text = outside.read_text(path, _MOST_BYTES, errors="replace")
        yield from _values(text)


def _paths(environment: Mapping[str, str]) -> Iterator[str]:
    for variable, folder, name, usual in _PLACES:
        if environment.get(variable):
            yield environment[variable]
        elif folder and environment.get(folder):
            yield os.path.join(environment[folder], name)
        elif environment.get("HOME"):
            yield os.path.join(environment["HOME"], usual.removeprefix("~/"))
    for name, value in environment.items():
        if name.endswith(("_FILE", "_PATH")) and is_secret_name(name[:-5]) and value:
            yield value


def _values(text: str) -> Iterator[str]:
    """The secrets of a file: its only word, or what has the name of a secret in JSON, in netrc or in an assignment."""
    if len(text.split()) == 1:
        yield text.strip()
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            yield from _named(outside.parse_json(text))
            return
    yield from re.findall(_NETRC, text)
    yield from (value for name, value in re.findall(_ASSIGNED, text) if is_secret_name(name))
    yield from find(text)


def _named(document: Any) -> Iterator[str]:
    """The texts below keys with the names of secrets. Source: the key file of a service account has `private_key`."""
    match document:
        case dict():
            for key, value in document.items():
                if isinstance(value, str) and is_secret_name(key):
                    yield value
                else:
                    yield from _named(value)
        case list():
            for value in document:
                yield from _named(value)
