"""JSON values and lines that nobody expects, drawn from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

DEEP = "[" * 200_000
# As texts of JSON, because some of them are no value in Python.
TEXTS = (
    *("null", "[]", "{}", '"x"', '""', "true", "-1", "0", "1.5", "1e999", "-1e999", "NaN", "1" + "0" * 400),
    *("1000000", "9223372036854775808", '"../../.."', '"/etc/hostname"', '"a\\u0000b"', '"\\ud800"', '[[["x"]]]'),
    *(
        DEEP,
        '"' + "x" * 300_000 + '"',
        '{"a": {"b": 1}}',
        "[1, null]",
        "1" + "0" * 5000,
        '"a\\nb"',
        "[" * 70 + "]" * 70,
    ),
)
_MARK = "\uffff"


def change(document: dict[str, Any], chance: random.Random) -> str:
    """The text of a document of which some values are others, or are missing."""
    changed: dict[str, Any] = dict(document)
    texts: list[str] = []
    for name in chance.sample(sorted(changed), min(len(changed), chance.choice((1, 1, 2, 3)))):
        if chance.random() < 0.2:
            del changed[name]
        else:
            changed[name] = f"{_MARK}{len(texts)}{_MARK}"
            texts.append(chance.choice(TEXTS))
    text = json.dumps(changed, ensure_ascii=False)
    for number, value in enumerate(texts):
        text = text.replace(f'"{_MARK}{number}{_MARK}"', value)
    return text


def garble(line: bytes, chance: random.Random) -> bytes:
    """A line with other bytes: cut, doubled, with flipped bits, or drawn at random."""
    match chance.randrange(5):
        case 0:
            return line[: chance.randrange(len(line) + 1)]
        case 1:
            return line + line
        case 2:
            return chance.randbytes(chance.choice((1, 100, 5000)))
        case 3:
            return chance.choice(TEXTS).encode()
    content = bytearray(line)
    for _ in range(chance.randrange(1, 9)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content)


def value(chance: random.Random, depth: int = 0) -> Any:
    """A value that JSON can hold."""
    if depth < 3 and chance.random() < 0.4:
        count = chance.randrange(4)
        if chance.random() < 0.5:
            return [value(chance, depth + 1) for _ in range(count)]
        return {chance.choice(("role", "content", "name", "x", "")): value(chance, depth + 1) for _ in range(count)}
    return chance.choice((None, True, -1, 0, 2**63, 10**400, 1.5, float("inf"), "", "x", "user", "\ud800", "a\0b"))


def extreme(document: dict[str, Any], chance: random.Random) -> str:
    """The text of a document of which some values are the strangest of their own type."""
    strange = {
        int: (-1, 0, 2**31, 2**53 + 1, 2**63 - 1, 10**15, 10**400),
        str: ("", "\ud800", "a\0b", "x\n" * 9, "x" * 300_000),
    }
    changed = dict(document)
    for name, before in document.items():
        if name != "kind" and type(before) in strange and chance.random() < 0.4:
            changed[name] = chance.choice(strange[type(before)])
    return json.dumps(changed)
