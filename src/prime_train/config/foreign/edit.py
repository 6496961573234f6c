"""Applies a patch to a YAML or JSON text and keeps its comments and layout. Writes no file, judges no value.

The text is parsed after each step: an edit must change exactly the values in the patch, else it is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from prime_train.config.foreign.document import is_json, plain_scalar, read_documents
from prime_train.config.foreign.yaml_places import YamlPlaces
from prime_train.core.findings import Patch
from prime_train.toml.document import Document, KeyPath, key_path, patched, value_at
from prime_train.toml.edit import EditRefused

_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*")


def edited_yaml(text: str, path: str, patch: Patch) -> str:
    """The text with every key of the patch set, or deleted if its value is None. Raises EditRefused."""
    for key, value in patch.items():
        document = _parse(text, path)
        wanted = patched(document.values, {key: value})
        keys = key_path(key, document.values)
        text = _remove(document, keys) if value is None else _set(document, keys, value)
        if _parse(text, path).values != wanted:
            raise EditRefused(f"{key} cannot be changed without changing another value")
    return text


def _parse(text: str, path: str) -> Document:
    documents = read_documents(text, path)
    if len(documents) != 1 or documents[0].fault is not None:
        raise EditRefused("the text is not one YAML document")
    return documents[0]


def _set(document: Document, key: KeyPath, value: Any) -> str:
    text, places = document.text, _places(document)
    offsets = places.offsets(key)
    if offsets is None:
        return _insert(document, key, value)
    _, key_end, start, end = offsets
    before = value_at(document.values, key)
    if isinstance(before, dict | list) and text[start] not in "{[":
        raise EditRefused(f"{key[-1]} is a block of several lines")
    if before is None and start >= end:  # `key:` without a value
        colon = text.index(":", key_end) + 1
        return f"{text[:colon]} {_to_yaml(value, document)}{text[colon:]}"
    return text[:start] + _to_yaml(value, document) + text[end:]


def _insert(document: Document, key: KeyPath, value: Any) -> str:
    """The text with a key that it does not have, below a key of the same table that stands on one line."""
    text, places = document.text, _places(document)
    table = value_at(document.values, key[:-1]) if key[:-1] else document.values
    if not isinstance(table, dict) or not table:
        raise EditRefused(f"there is no table for {key[-1]}")
    entry = f"{_to_yaml(str(key[-1]), document)}: {_to_yaml(value, document)}"
    for name in reversed(table):
        offsets = places.offsets((*key[:-1], name))
        if offsets is None or "\n" in text[offsets[0] : offsets[3]].rstrip():
            continue
        begin, _, _, end = offsets
        indent = text[text.rfind("\n", 0, begin) + 1 : begin]
        if _is_flow(document, key[:-1]):
            between = f"\n{indent}" if not indent.strip() else " "
            return f"{text[:end]},{between}{entry}{text[end:]}"
        if indent.strip():
            continue
        line_end = text.find("\n", max(begin, end))
        line_end = len(text) if line_end < 0 else line_end
        return f"{text[:line_end]}\n{indent}{entry}{text[line_end:]}"
    raise EditRefused(f"no line of the table of {key[-1]} can be followed by another")


def _remove(document: Document, key: KeyPath) -> str:
    text, places = document.text, _places(document)
    offsets = places.offsets(key)
    if offsets is None:
        raise EditRefused(f"{key[-1]} is not in the text")
    begin, end = offsets[0], _end_of(places, key)
    if _is_flow(document, key[:-1]):
        after = re.match(r"\s*,[ \t]*", text[end:])
        if after is not None:
            return text[:begin] + text[end + after.end() :]
        return re.sub(r",\s*\Z", "", text[:begin]) + text[end:]
    line_start = text.rfind("\n", 0, begin) + 1
    if text[line_start:begin].strip():
        raise EditRefused(f"{key[-1]} does not begin its line")
    line_end = text.find("\n", end)
    return text[:line_start] + ("" if line_end < 0 else text[line_end + 1 :])


def _end_of(places: YamlPlaces, key: KeyPath) -> int:
    """Where the value of a key ends: a block ends with its last word, and not in front of the next key."""
    _, key_end, start, end = places.offsets(key) or (0, 0, 0, 0)
    inside = [marks[3].index for other, marks in places.keys.items() if other[: len(key)] == key and other != key]
    if inside and places.text[start] not in "{[":
        end = max(inside)
    written = places.text[start:end].rstrip()
    return start + len(written) if written else key_end + 1  # after the colon of a key without a value


def _places(document: Document) -> YamlPlaces:
    assert isinstance(document.written, YamlPlaces)
    return document.written


def _is_flow(document: Document, table: KeyPath) -> bool:
    """Whether a table is written in braces."""
    if not table:
        return is_json(document.text)
    offsets = _places(document).offsets(table)
    return offsets is not None and document.text.startswith("{", offsets[2])


def _to_yaml(value: Any, document: Document) -> str:
    """A value on one line, in the words of JSON where the text is JSON."""
    if is_json(document.text):
        return json.dumps(value, ensure_ascii=False)
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            text = repr(value)
            return text if "." in text else text.replace("e", ".0e")  # 1e-05 is a text in YAML 1.1
        case str():
            return value if _PLAIN.fullmatch(value) and plain_scalar(value) == value else json.dumps(value)
        case list() | tuple():
            return f"[{', '.join(_to_yaml(item, document) for item in value)}]"
        case Mapping():
            return (
                "{"
                + ", ".join(f"{_to_yaml(key, document)}: {_to_yaml(item, document)}" for key, item in value.items())
                + "}"
            )
        case _:
            return json.dumps(value)
