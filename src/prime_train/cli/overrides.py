"""Applies `--set a.b=c` to the text of a config, so that the value is judged and kept like one in the file. Pure.

The text is edited in place, so comments stay and findings name the right line. The edited text is parsed again and
must hold the new value; if the text cannot be edited, UserError asks the user to edit a copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomli

from prime_train.core.errors import UserError
from prime_train.toml.document import Document, patched, to_toml
from prime_train.toml.edit import EditRefused, edited

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")  # outside of all tables: prime-rl has such keys, run.toml has none


def parse_overrides(assignments: Sequence[str], *, plain_keys: bool = False) -> dict[str, Any]:
    """Dotted keys to values; with `plain_keys` also keys without a dot. Raises UserError.

    A value is TOML, or one bare word, which becomes a string.
    """
    return dict(_parse_override(assignment, plain_keys) for assignment in assignments)


def _parse_override(assignment: str, plain_keys: bool) -> tuple[str, Any]:
    key, separator, written = assignment.partition("=")
    key, written = key.strip(), written.strip()
    if not separator or not (_KEY.fullmatch(key) or (plain_keys and _PLAIN_KEY.fullmatch(key))):
        raise UserError(
            what=f"{assignment!r} is not an assignment",
            where=f"--set {assignment}",
            why="it takes a dotted key of the config, =, and a TOML value",
            fix="for example: --set run.max_steps=500, or --set 'eval.prompts=[\"import os\"]'",
        )
    try:
        return key, tomli.loads(f"value = {written}")["value"]
    except tomli.TOMLDecodeError as error:
        if re.fullmatch(r"[\w./~:*@+-]+", written):  # a string without its quotes
            return key, written
        raise UserError(
            what=f"{written!r} is not a TOML value: {error.msg}",
            where=f"--set {assignment}",
            why="a value that is neither TOML nor one plain word is ambiguous",
            fix=f"quote it for TOML and for the shell: --set '{key}=\"...\"'",
        ) from None


def apply_overrides(text: str, path: str, values: Mapping[str, Any]) -> str:
    """The text with every value set. A text that is not TOML is returned unchanged, because lint reports it.

    Raises UserError.
    """
    for key, value in values.items():
        document = Document.parse(text, path)
        if document.fault is not None:
            return text
        text = _set(document, key, value)
    return text


def _set(document: Document, key: str, value: Any) -> str:
    wanted = _set_in_values(document, key, value)
    parts = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    place = document.place(parts)
    lines = document.text.split("\n")
    written = to_toml(value)
    if place is not None and place.written:
        span = place.value
        head = lines[span.line - 1][: span.column - 1]
        tail = lines[span.end_line - 1][span.end_column - 1 :]
        lines[span.line - 1 : span.end_line] = [f"{head}{written}{tail}"]
        return _verify("\n".join(lines), wanted, document.path, key)
    if len(parts) == 1:
        try:
            return edited(document.text, {key: value})
        except EditRefused as error:
            raise _refusal(document.path, key, str(error)) from None
    table = document.place(parts[:-1])
    if table is not None and not table.written:  # the table has a header: insert the key below it
        lines.insert(table.key.line, f"{parts[-1]} = {written}")
        return _verify("\n".join(lines), wanted, document.path, key)
    *tables, name = key.split(".")
    appended = f"\n[{'.'.join(tables)}]\n{name} = {written}\n"
    return _verify(document.text.rstrip("\n") + "\n" + appended, wanted, document.path, key)


def _set_in_values(document: Document, key: str, value: Any) -> dict[str, Any]:
    try:
        return patched(document.values, {key: value})
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        raise _refusal(document.path, key, "a part of that key is not a table in the file") from None


def _verify(text: str, wanted: dict[str, Any], path: str, key: str) -> str:
    try:
        if tomli.loads(text) == wanted:
            return text
    except tomli.TOMLDecodeError:
        pass
    raise _refusal(path, key, "--set cannot edit the form in which the file writes the table around that key")


def _refusal(path: str, key: str, why: str) -> UserError:
    return UserError(
        what=f"{key} cannot be set in {path}", where=f"--set {key}", why=why, fix=f"write {key} into a copy of the file"
    )
