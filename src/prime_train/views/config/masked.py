"""Masks the secrets of a config, in its values by their keys and in its text by their places. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prime_train.config.differences import flatten_values, plain
from prime_train.core.redaction import MASK, WORDS, is_secret_name, mask_after_flags, mask_assigned, redact
from prime_train.toml.document import Document, dotted, key_path

_COUNTED = ("token", "key")  # a number there is a count, such as model.experts_per_token


def is_secret_key(key: str) -> bool:
    """Whether a key, or a table above it, has the name of a secret."""
    return any(is_secret_name(str(part)) for part in key_path(key, {}))


def mask(key: str, value: Any, hidden: Iterable[str]) -> Any:
    """The value as it may be shown: masked where its key has the name of a secret, else with the secrets in it masked.

    `hidden`: other values to mask.
    """
    if is_secret_key(key) and not _is_plain(key, value):
        return MASK
    if isinstance(value, Mapping):
        return {name: mask(dotted((str(name),)), below, hidden) for name, below in value.items()}
    if isinstance(value, list | tuple):
        return mask_after_flags([mask("", below, hidden) for below in value])
    return redact(value, hidden) if isinstance(value, str) else value


def _is_plain(key: str, value: Any) -> bool:
    """Whether a value below the name of a secret is none: a switch, a count, or nothing."""
    is_count = isinstance(value, int | float) and key.lower().endswith(_COUNTED)
    is_word = isinstance(value, str) and value.lower() in {*WORDS, ""}
    return is_count or is_word or isinstance(value, bool | None) or value in ({}, [])


def mask_text(document: Document, hidden: Iterable[str]) -> str:
    """The text of a config, with the value of each key masked that has the name of a secret."""
    lines = document.text.split("\n")
    values = plain(document.values)
    masked = [key for key, value in flatten_values(values).items() if is_secret_key(key) and not _is_plain(key, value)]
    places = [document.place(key_path(key, document.values)) for key in masked]
    spans = sorted((place.value for place in places if place is not None), reverse=True)
    for span in spans:  # the last first, so that the columns of the others stay
        first, last = lines[span.line - 1][: span.column - 1], lines[span.end_line - 1][span.end_column - 1 :]
        lines[span.line - 1 : span.end_line] = [f'{first}"{MASK}"{last}']
    return redact(mask_assigned("\n".join(lines)), hidden)
