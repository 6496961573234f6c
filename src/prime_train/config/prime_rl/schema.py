"""The legal keys of each generation of prime-rl, read from its table. Judges nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.config import schema
from prime_train.config.prime_rl.plugins import add_plugins
from prime_train.config.schema import Field, Shape, Table, shapes_of, table_below
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import cache_path, shipped
from prime_train.spec.annotations import Limit
from prime_train.spec.answers import prime_rl_of
from prime_train.toml.document import KeyPath

if TYPE_CHECKING:
    from prime_train.spec import RunSpec

_TYPES: dict[str, type[Any]] = {"bool": bool, "int": int, "str": str, "tuple[str, ...]": tuple}


class Features(NamedTuple):
    """The features of one generation. docs/prime_rl_tables.py has their values and sources."""

    vllm: str  # the version of vLLM that is installed with it
    names_runs: bool  # a run has a name, and a folder of its own below output_dir
    cleans_by_default: bool  # `rl` deletes the files of an earlier run unless the config forbids it
    head_chunk_vocab: int  # columns of the logits that the RL trainer computes at once by default; 0 = all
    slow_moe_attention: bool  # `sft` of a mixture of experts is as slow as FlashAttention 2 with any kernel
    vision_needs_bf16: bool  # a model with [model.vlm] is refused unless it is trained in bf16
    refuses_offline_shared_run: bool  # W&B cannot be offline where trainer and orchestrator share a run
    reserved_environment_names: tuple[str, ...]  # names that no environment may have

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Features:
        """The features in a table file. Raises ValueError if one is missing, unknown or of another type."""
        if values.keys() != set(cls._fields):
            raise ValueError(f"features: expected {', '.join(cls._fields)}; found {', '.join(values)}")
        given: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}
        for name, written in cls.__annotations__.items():
            value, expected = given[name], _TYPES[str(getattr(written, "__forward_arg__", written))]
            if type(value) is not expected or (expected is tuple and not all(isinstance(item, str) for item in value)):
                raise ValueError(f"features.{name} = {value!r}: expected {expected.__name__}")
        return cls(**given)


class SchemaGeneration(NamedTuple):
    """The schema of one generation. `feeds`: root -> RunSpec field -> the keys that set it, the first in a file counts.

    `first_release` is the first version of prime-rl with this schema, "" for the oldest generation.
    """

    name: str
    source: str
    as_of: str
    first_release: str
    features: Features
    roots: Mapping[str, Table]
    feeds: Mapping[str, Mapping[str, list[str]]]

    @classmethod
    def of(cls, content: Mapping[str, Any], name: str = "") -> SchemaGeneration:
        """The schema in a table file, as `table.compact` makes it. `name` overrules the name in the file."""
        tables: dict[str, Table] = {}
        rows_of = add_plugins(content["tables"], content.get("plugins", {}))
        for each, rows in rows_of.items():  # a table comes after those below it
            tables[each] = _table(each, rows, tables)
        roots = {root: tables[each] for root, each in content["roots"].items()}
        return cls(
            name=name or content["generation"],
            source=content["source"],
            as_of=content["as_of"],
            first_release=content["first_release"],
            features=Features.of(content["features"]),
            roots=roots,
            feeds=content["feeds"],
        )

    def find(self, root: str, path: KeyPath) -> Field | None:
        """The field of a key path, in which numbers are array indices; None if there is no such key."""
        table: Table | None = self.roots[root]
        item: Field | None = None
        is_inside = False  # an array or a map, where the next part is an index or a free name
        for part in path:
            if is_inside:
                is_inside = False
                continue
            if table is None or isinstance(part, int) or (item := table.find(part)) is None:
                return None
            table, is_inside = table_below(item.shape)
        return item

    def paths(self, root: str) -> Iterator[tuple[KeyPath, Field]]:
        """(key path, field) of every key, except below arrays and maps."""
        yield from _walk((), self.roots[root])

    def paths_near(self, root: str, at: KeyPath) -> Iterator[tuple[KeyPath, Field]]:
        """`paths`, and those below each entry of an array or a map that the key path `at` leads through."""
        yield from self.paths(root)
        table: Table | None = self.roots[root]
        is_inside = False
        for depth, part in enumerate(at):
            item = None if is_inside or table is None else table.find(str(part))
            if is_inside and table is not None:
                yield from _walk(at[: depth + 1], table)
                is_inside = False
            elif item is None:
                return
            else:
                table, is_inside = table_below(item.shape)


def _walk(start: KeyPath, below_start: Table) -> Iterator[tuple[KeyPath, Field]]:
    stack: list[tuple[KeyPath, Table]] = [(start, below_start)]
    while stack:
        at, table = stack.pop()
        for name, item in table.fields.items():
            yield (*at, name), item
            stack.extend(((*at, name), below) for below in shapes_of(item.shape) if isinstance(below, Table))


def _table(name: str, rows: Mapping[str, Any], tables: Mapping[str, Table]) -> Table:
    about = rows.get(".", {})
    opened = about.get("open", False)
    fields = {key: _field(key, row, tables) for key, row in rows.items() if key != "."}
    return Table(
        fields=fields,
        make=dict,
        name=name,
        tag=about.get("tag", ""),
        open=tuple(opened) if isinstance(opened, list) else opened,
        aliases={alias: key for key, item in fields.items() for alias in item.aliases},
    )


def _field(name: str, row: Any, tables: Mapping[str, Table]) -> Field:
    """The field of one row: its type, or an object. A type is words with "|" between them."""
    if isinstance(row, str):
        row = {"type": row}
    words = row["type"].split("|") if "type" in row else []
    legal = schema.OneOf(tuple(row.get("choices", ())))
    shapes = [_shape(word, row, legal) for word in words if word != "none" and not (word == "map" and "map" in row)]
    if "table" in row:
        shapes.append(tables[row["table"]])
    elif "array" in row or "map" in row:
        shapes.append(schema.Array(tables[row["array"]]) if "array" in row else schema.Map(tables[row["map"]]))
    if legal.values and not any("[choice]" in word for word in words):
        shapes.append(legal)
    default = row.get("default")
    return Field(
        name=name,
        key=name,
        shape=shapes[0] if len(shapes) == 1 else schema.AnyOf(tuple(shapes)),
        doc="",
        default=tuple(default) if isinstance(default, list) else default,
        required=row.get("required", False),
        optional="none" in words,
        aliases=tuple(row.get("aliases", ())),
        when=tuple(row.get("when", ())),
        is_late=row.get("factory", False),
    )


def _shape(word: str, row: Mapping[str, Any], legal: schema.OneOf) -> Shape:
    """The shape of a word: whole, number, text, flag, any, choice, map, or list[...] and map[...] of these."""
    container, _, inner = word.removesuffix("]").partition("[")
    match container:
        case "list" | "map":
            item = _shape(inner, {}, legal) if inner else schema.Anything()
            return schema.Array(item) if container == "list" else schema.Map(item)
        case "whole" | "number":
            return schema.Number(word == "whole", tuple(Limit(sign, limit) for sign, limit in row.get("bounds", ())))
        case "flag":
            return schema.Flag()
        case "choice":
            return legal
    return schema.Text() if container == "text" else schema.Anything()


@cache
def tables() -> dict[str, str]:
    """Generation -> its file. The user's own table overrules a shipped one of the same name."""
    return {**_table_files(shipped("prime_rl")), **_table_files(cache_path("prime_rl"))}


def _table_files(folder: str) -> dict[str, str]:
    """Generation -> its file. A folder that does not exist has none: the user has no tables."""
    return {path.stem: str(path) for path in Path(folder).glob("*.json")}


def generations() -> tuple[str, ...]:
    """The generations with a table, oldest first. The name of a generation is its year and month."""
    return tuple(sorted(tables()))


def newest() -> str:
    return generations()[-1]


@cache
def months() -> tuple[str, ...]:
    """The months from the oldest generation to the newest, such as "2026-02". A table with another name has none."""
    named = [name[:7] for name in generations() if re.match(r"20\d\d-(0[1-9]|1[0-2])", name)]
    if not named:
        return ()
    year, month = (int(part) for part in named[0].split("-"))
    found = []
    while f"{year}-{month:02}" <= named[-1]:
        found.append(f"{year}-{month:02}")
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return tuple(found)


def generation_before(name: str, among: Iterable[str]) -> str:
    """The newest of the generations that is not newer than `name`; the oldest if all are newer."""
    known = sorted(among)
    return max((one for one in known if one <= name), default=known[0])


def shipped_generations() -> tuple[SchemaGeneration, ...]:
    """The shipped tables, oldest first."""
    return tuple(_read(path, name) for name, path in sorted(_table_files(shipped("prime_rl")).items()))


def load(name: str) -> SchemaGeneration:
    """The table of a generation. Raises UserError if a table of the user cannot be read."""
    return _read(tables()[name], name)


@cache
def _read(path: str, name: str) -> SchemaGeneration:
    try:
        with outside.open_regular(path) as file:
            return SchemaGeneration.of(json.load(file), name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if path.startswith(shipped()):
            raise
        raise UserError(
            what="the table of prime-rl cannot be read",
            where=path,
            why=f"{type(error).__name__}: {error}",
            fix="prime-train schema import --python PATH --keep writes it again; or delete the file",
        ) from None


def features_of(run: RunSpec) -> Features:
    """The features of the generation of a run's config; those of the newest one if it has none."""
    return features_of_generation(prime_rl_of(run).launch.generation)


def features_of_generation(name: str | None) -> Features:
    """The features of a generation; of the table before it if it has no table. None means the newest generation."""
    # Imported here, because rules about a run.toml import this module and need no table of prime-rl.

    known = generations()
    return load(newest() if name is None else generation_before(name, known)).features
