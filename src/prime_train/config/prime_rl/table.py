"""Turns the field rows of a prime-rl schema into the compact table in `registry/prime_rl/`. Pure.

A row is one legal key, from an introspection of pydantic models: `root`, dotted `path` ("[]" marks an array of tables,
"*" any name), `type` as Python writes it, `default`, `required`, `constraints`, `aliases`, `section` (it is a table),
`open` (any key below it is legal), `discriminator`, `only_when`. The compact form has each distinct table once; a field
is its type, or an object if it has more than a type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Row = Mapping[str, Any]
_SCALARS = {"int": "whole", "float": "number", "str": "text", "Path": "text", "bool": "flag", "None": "none"}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class _Node(NamedTuple):
    """One key and those below it, by name; "[]" and "*" stand for the elements of an array or a map."""

    row: dict[str, Any]
    below: dict[str, _Node]


class TableOrigin(NamedTuple):
    """The prime-rl that a table describes.

    `first_release` is the first version with this schema, "" for the oldest generation; `features` are the fields of
    features.py.
    """

    generation: str
    source: str
    as_of: str
    first_release: str
    features: Mapping[str, Any]


def compact(rows: Iterable[Row], origin: TableOrigin, feeds: Mapping[str, Mapping[str, list[str]]]) -> dict[str, Any]:
    """The table of one generation. `feeds`: root -> RunSpec field -> the dotted keys that set it."""
    roots: dict[str, _Node] = {}
    for row in rows:
        node = roots.setdefault(row["root"].replace("_", "-"), _Node({"section": True}, {}))
        for part in _parts(row["path"]):
            node = node.below.setdefault(part, _Node({}, {}))
        node.row.update(row)
    names = _Names()
    tables = {root: names.table(node, root) for root, node in roots.items()}
    return origin._asdict() | {
        "roots": tables,
        "feeds": {root: dict(keys) for root, keys in feeds.items() if root in roots},
        "tables": names.tables,
    }


def to_json(table: Mapping[str, Any]) -> str:
    """The text of a table file: one line per field."""
    head = "".join(
        f" {json.dumps(key)}: {json.dumps(table[key])},\n"
        for key in ("generation", "source", "as_of", "first_release", "inherits", "features", "roots")
        if key in table
    )
    feeds = ",\n".join(f"  {json.dumps(root)}: {_lines(keys, 3)}" for root, keys in table["feeds"].items())
    tables = ",\n".join(f"  {json.dumps(name)}: {_lines(content, 3)}" for name, content in table["tables"].items())
    plugins = f',\n "plugins": {_plugins(table["plugins"])}' if "plugins" in table else ""
    return f'{{\n{head} "feeds": {{\n{feeds}\n }},\n "tables": {{\n{tables}\n }}{plugins}\n}}\n'


def _plugins(content: Mapping[str, Any]) -> str:
    """The text of the plug-ins of a table file: one line per key."""
    parts = [
        f"  {json.dumps(name)}: "
        + (_lines(each, 3) if name == "tables" else _plugin(each) if isinstance(each, dict) else json.dumps(each))
        for name, each in content.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n }"


def _plugin(content: Mapping[str, Any]) -> str:
    head = "".join(f"   {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items() if key != "keys")
    return f'{{\n{head}   "keys": {_lines(content["keys"], 4)}\n  }}'


def _lines(content: Mapping[str, Any], indent: int) -> str:
    pad = " " * indent
    inside = ",\n".join(f"{pad}{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    return f"{{\n{inside}\n{pad[1:]}}}" if content else "{}"


def _parts(path: str) -> Iterator[str]:
    for part in path.split("."):
        yield part.removesuffix("[]")
        if part.endswith("[]"):
            yield "[]"


class _Names:
    """The distinct tables, each with a unique name."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self._named: dict[str, str] = {}  # content -> name

    def table(self, node: _Node, wanted: str) -> str:
        """The name of the table with the keys below `node`."""
        content: dict[str, Any] = {}
        tag = node.row.get("discriminator") or _tag_of(node)
        if tag:
            content["."] = {"tag": tag}
        opened = _open_for(node, tag)
        if opened:
            content["."] = content.get(".", {}) | {"open": opened}
        members = set(_words(node.below[tag].row.get("type", ""))[1]) if tag and tag in node.below else set()
        for key, child in sorted(node.below.items()):
            if key not in ("*", "[]"):
                content[key] = self._field(child, tag, members)
        member = _default_member(node, tag)
        if tag and member:
            content[tag]["default"] = member
        text = json.dumps(content)
        if text not in self._named:
            name, number = wanted, 1
            while name in self.tables:
                number += 1
                name = f"{wanted}/{number}"
            self._named[text] = name
            self.tables[name] = content
        return self._named[text]

    def _field(self, node: _Node, tag: str | None, members: set[str]) -> str | dict[str, Any]:
        row = node.row
        words, choices, classes = _words(row.get("type", "any"))
        found: dict[str, Any] = {"type": "|".join(words)} if words else {}
        if choices:
            found["choices"] = choices
        wanted = classes[0].removesuffix("Config") if classes else "Open"
        if "[]" in node.below:
            found["array"] = self.table(node.below["[]"], wanted)
        elif "*" in node.below and node.below["*"].below:
            found["map"] = self.table(node.below["*"], wanted)
        elif row.get("section"):
            found["table"] = self.table(node, wanted)
        found |= _extras(row, tag, members)
        if "table" in found and len(classes) > 1 and str(row.get("default")).startswith("<factory"):
            found["factory"] = True
        return found["type"] if list(found) == ["type"] else found


def _extras(row: Row, tag: str | None, members: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    default = row.get("default")
    if isinstance(default, bool | int | float) or (isinstance(default, str) and not default.startswith("<factory")):
        found["default"] = default
    elif isinstance(default, list) and all(isinstance(item, int) for item in default):
        found["default"] = default  # such as the GPUs of a role
    elif default is not None:
        found["default"] = []  # a table or a list that exists by default
    if row.get("required"):
        found["required"] = True
    if row.get("constraints"):
        bounds = [part.strip().split("=") for part in row["constraints"].split(",")]
        found["bounds"] = [
            [_SIGNS[name], float(limit) if "." in limit else int(limit)] for name, limit in bounds if name in _SIGNS
        ]
        found = {key: value for key, value in found.items() if value != [] or key != "bounds"}
    if row.get("aliases"):
        found["aliases"] = list(row["aliases"])
    parent = row["path"].rpartition(".")[0] if "path" in row else ""
    when = [condition.partition("=") for condition in row.get("only_when", ())]
    applies = [value for key, _, value in when if tag and key == f"{parent}.{tag}".removeprefix(".")]
    if applies and row["path"].rpartition(".")[2] != tag and set(applies) != members:
        found["when"] = applies
    return found


def _tag_of(node: _Node) -> str | None:
    """The discriminator of a union without a named one: the key whose literals the other keys depend on."""
    for child in node.below.values():
        for condition in child.row.get("only_when", ()):
            key = condition.partition("=")[0]
            parent, _, tag = str(key).rpartition(".")
            if parent == child.row["path"].rpartition(".")[0]:
                return tag
    return None


def _default_member(node: _Node, tag: str | None) -> str | None:
    """The default member of a union if it is not the first one."""
    default = node.row.get("default")
    if tag is None or tag not in node.below or default is None:
        return None
    made = default.get("__class__", "") if isinstance(default, dict) else str(default)[len("<factory:") : -1]
    by_class = node.below[tag].row.get("default_by_class") or {}
    return by_class.get(made)


def _open_for(node: _Node, tag: str | None) -> bool | list[str]:
    """Whether any key is legal below a table; or the members of the union that allow any key."""
    any_key = node.below.get("*")
    if any_key is None or any_key.below:
        return bool(node.row.get("open") and node.row.get("section"))
    owners = set(any_key.row.get("in_class", ()))
    members = {
        str(condition).partition("=")[2]
        for child in node.below.values()
        if len(child.row.get("only_when", ())) == 1 and set(child.row.get("in_class", ("",))) <= owners
        for condition in child.row["only_when"]
    }
    return sorted(members) if tag and members else True


def _words(type_: str) -> tuple[list[str], list[str], list[str]]:
    """(our words for a type, its literal strings, its classes)."""
    words: list[str] = []
    choices: list[str] = []
    classes: list[str] = []
    for part in _split(type_):
        if part.startswith("Literal["):
            choices.extend(re.findall(r"'([^']*)'", part))
        elif part in _SCALARS:
            words.append(_SCALARS[part])
        elif part.startswith(("any", "legacy-shim", "Any")):
            words.append("any")
        elif part.startswith("list["):
            inner, inner_choices, inner_classes = _words(part[5:-1])
            classes.extend(inner_classes)
            choices.extend(inner_choices)
            if not inner_classes:
                words.append(f"list[{inner[0] if inner else 'choice'}]")
        elif part == "dict" or part.startswith("dict["):
            inner, _, inner_classes = _words(part.partition(", ")[2][:-1] or "Any")
            classes.extend(inner_classes)
            words.append("map" if not inner or inner == ["any"] else f"map[{inner[0]}]")
        else:
            classes.append(part)
    unique = list(dict.fromkeys(words))
    return unique, list(dict.fromkeys(choices)), classes


def _split(type_: str) -> list[str]:
    """The members of `A | B[C | D]`, at the top level."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(type_):
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and depth == 0:
            parts.append(type_[start:index].strip())
            start = index + 1
    return [*parts, type_[start:].strip()]
