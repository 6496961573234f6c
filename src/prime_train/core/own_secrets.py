"""Collects the secrets that this process can read: in its environment, and in files that the environment names.

Skips what is no regular file, or larger than 64 KiB. Keeps nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from prime_train.core import outside, redaction

# ruff: noqa: PTH118 - paths are texts here

_MOST_BYTES = 64 * 1024
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


def own_secrets(names: Iterable[str | None] = (), environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The secret values of the environment and of the files that it names, longest first, in every form of a text.

    `names`: variables that are secret regardless of their names. `environment`: default: that of this process.
    """
    environment = os.environ if environment is None else environment
    read = {f"{number}_SECRET": value for number, value in enumerate(_in_files(environment))}
    return redaction.secrets({**environment, **read}, (*names, *read))


def _in_files(environment: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(set(_paths(environment))):
        text = _read(path)
        if text:
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
        if name.endswith(("_FILE", "_PATH")) and redaction.is_secret_name(name[:-5]) and value:
            yield value


def _read(path: str) -> str:
    """A file; "" for what is missing, unreadable, too large or no regular file, such as a pipe that blocks."""
    try:
        return outside.read_text(path, _MOST_BYTES, errors="replace")
    except (OSError, ValueError):  # ValueError: a null character
        return ""


def _values(text: str) -> Iterator[str]:
    """The secrets of a file: its only word, or what has the name of a secret in JSON, in netrc or in an assignment."""
    if len(text.split()) == 1:
        yield text.strip()
    if text.lstrip()[:1] in ("{", "["):
        from prime_train.core.strict_json import parse_json

        with suppress(ValueError):
            yield from _named(parse_json(text))
            return
    yield from re.findall(_NETRC, text)
    yield from (value for name, value in re.findall(_ASSIGNED, text) if redaction.is_secret_name(name))
    yield from redaction.find(text)


def _named(document: Any) -> Iterator[str]:
    """The texts below keys with the names of secrets. Source: the key file of a service account has `private_key`."""
    match document:
        case dict():
            for key, value in document.items():
                if isinstance(value, str) and redaction.is_secret_name(key):
                    yield value
                else:
                    yield from _named(value)
        case list():
            for value in document:
                yield from _named(value)
