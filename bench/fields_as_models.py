"""Pydantic models made from the published field rows of a prime-rl: keys, types, bounds, unions, no validators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

_NAMES = {"Literal": Literal, "Path": Path, "Any": Any, "any": Any}
_BUILTINS = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "dict": dict, "None": None}
_PLAIN = frozenset(_BUILTINS) - {"None", "list", "dict"}
Row = Mapping[str, Any]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def none_as_text(cls, values: Any) -> Any:
        """prime-rl reads "None" as no value. Source: prime-pydantic-config 0.4.3, BaseConfig."""
        return {k: None if v == "None" else v for k, v in values.items()} if isinstance(values, dict) else values


class _Node:
    """One key of the rows and those below it."""

    def __init__(self) -> None:
        self.row: dict[str, Any] = {}
        self.below: dict[str, _Node] = {}


class FieldJudge:
    """Validates values with models made from the rows of one generation."""

    def __init__(self, rows: list[Row]) -> None:
        self._roots: dict[str, _Node] = {}
        self._models: dict[str, Any] = {}
        for row in rows:
            node = self._roots.setdefault(row["root"].replace("_", "-"), _Node())
            for part in row["path"].replace("[]", ".[]").split("."):
                node = node.below.setdefault(part, _Node())
            when = [one.replace("renderer.type=", "renderer.name=") for one in row.get("only_when") or ()]
            node.row = {**row, "only_when": when}  # the rows of 2026-05 name the tag of renderers wrongly

    def refusals(self, root: str, values: dict[str, Any]) -> list[str]:
        """The messages with which pydantic refuses the values."""
        if root not in self._models:
            self._models[root] = _model(self._roots[root], "", {})
        try:
            self._models[root].model_validate(values)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found]
        return []


def _model(node: _Node, path: str, members: Mapping[str, str], own: str = "") -> Any:
    """The model of a table. `members`: path of a tag -> the member of the union that the model is inside of; `own` is
    the class of the rows that the model stands for, "" for all of them."""
    fields: dict[str, Any] = {}
    for name, child in node.below.items():
        if name in ("*", "[]") or not _applies(child.row, members):
            continue
        at = f"{path}.{name}" if path else name
        kind = _kind(child, at, members)
        row = child.row
        if at in members:
            kind = Literal[members[at]]
        found = re.findall(r"(ge|gt|le|lt)=(-?[\d.e+-]+)|(min_length|max_length)=(\d+)", row.get("constraints") or "")
        bounds: dict[str, Any] = {(a or c): float(b) if a else int(d) for a, b, c, d in found}
        names = AliasChoices(name, *row.get("aliases", ()))
        default = ... if row.get("required") else None
        fields[f"field_{len(fields)}"] = (kind, Field(default, validation_alias=names, **bounds))
    opening = node.below["*"].row.get("in_class", []) if "*" in node.below else []
    opened = bool(node.row.get("open")) or own in opening or bool(opening and not own)
    extra: Any = "allow" if opened else "forbid"
    base = type("Table", (_Table,), {"model_config": ConfigDict(extra=extra, protected_namespaces=())})
    return create_model("Model", __base__=base, **fields)


def _applies(row: Row, members: Mapping[str, str]) -> bool:
    """Whether a row applies to these members of the unions around it."""
    wanted: dict[str, set[str]] = {}
    for condition in row.get("only_when") or ():
        tag, _, member = condition.partition("=")
        wanted.setdefault(tag, set()).add(member)
    return all(members[tag] in values for tag, values in wanted.items() if tag in members)


def _kind(node: _Node, path: str, members: Mapping[str, str]) -> Any:
    text = str(node.row.get("type", "any"))
    array, is_map = "[]" in node.below, "*" in node.below and bool(node.below["*"].below)
    if not (node.row.get("section") or array or is_map):
        return _plain(text)
    inner, at = (node.below["[]"], f"{path}[]") if array else (node.below["*"], f"{path}.*") if is_map else (node, path)
    if array or is_map:
        inner.row = {"discriminator": node.row.get("discriminator")} | inner.row
    table: Any = _union(inner, at, members, node.row)
    kind: Any = list.__class_getitem__(table) if array else dict.__class_getitem__((str, table)) if is_map else table
    others = [
        _plain(part) for part in re.split(r" \| (?![^\[]*\])", text) if part in _PLAIN or part.startswith("Literal")
    ]
    return Union[(kind, *others, *([None] if "None" in text.split(" | ") else []))]


def _union(node: _Node, path: str, members: Mapping[str, str], around: Row) -> Any:
    tag = node.row.get("discriminator") or _tag(node, path)
    if not tag or tag not in node.below:
        return _model(node, path, members)
    row = node.below[tag].row
    values = re.findall(r"Literal\['([^']*)'\]", row["type"]) or re.findall(r"'([^']*)'", row["type"])
    owners = row["in_class"] if len(row["in_class"]) == len(values) else [""] * len(values)
    models = tuple(
        _model(node, path, {**members, f"{path}.{tag}": value}, owner)
        for value, owner in zip(values, owners, strict=True)
    )
    if len(models) == 1:
        return models[0]
    default = around.get("default")
    made = default.get("__class__") if isinstance(default, dict) else None
    member = (row.get("default_by_class") or {}).get(made, row.get("default")) if made and tag == "type" else None
    tagged = tuple(Annotated[model, _with_only(value, tag)] for model, value in zip(models, values, strict=True))
    return Annotated[Union[tagged], BeforeValidator(_with_tag(tag, member))]  # noqa: UP007


def _tag(node: _Node, path: str) -> str:
    """The tag that the conditions of a table's own rows name: the rows of an optional union have no discriminator."""
    found = (each for child in node.below.values() for each in child.row.get("only_when") or ())
    own = (each.removeprefix(f"{path}.").partition("=")[0] for each in found if each.startswith(f"{path}."))
    return next((tag for tag in own if tag in node.below), "")


def _with_tag(tag: str, member: Any) -> Callable[[Any], Any]:
    def fill(values: Any) -> Any:
        return {tag: member, **values} if member and isinstance(values, dict) and tag not in values else values

    return fill


def _with_only(value: str, tag: str) -> Any:
    """Accepts a table only with this tag, so that one member of the union is tried."""

    def check(values: Any) -> Any:
        if not isinstance(values, dict) or values.get(tag) != value:
            raise ValueError(f"{tag} is not {value}")
        return values

    return BeforeValidator(check)


def _plain(text: str) -> Any:
    if not re.fullmatch(r"[\w\s|\[\],.'\"/+:-]+", re.sub(r" \(.*", "", text)):
        return Any
    try:
        return eval(re.sub(r" \(.*", "", text), {"__builtins__": {}}, {**_NAMES, **_BUILTINS})
    except (NameError, SyntaxError, TypeError):
        return Any
