"""Adds the keys of the plug-ins that come with verifiers to the tables of a generation. Pure.

A table of a plug-in has the keys that every plug-in has, and any others. Its tag, such as the `id` of a harness, names
the plug-in. The keys of one that comes with verifiers are known, so another key is a misspelling that prime-rl refuses.
The package of any other plug-in has keys of its own, which no rule judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Rows = Mapping[str, Any]


def add_plugins(tables: Mapping[str, Rows], plugins: Mapping[str, Any]) -> dict[str, Rows]:
    """The rows of each table, with those of its plug-ins: keys with `when`, as those of a union have them.

    `plugins`: the name of a table -> its tag, the members, whether it is closed to others, and their keys. `tables`
    has further tables, on which these keys depend.
    """
    added: Mapping[str, Rows] = plugins.get("tables", {})
    return {**added, **{name: _extend(rows, plugins.get(name)) for name, rows in tables.items()}}


def _extend(rows: Rows, plugin: Mapping[str, Any] | None) -> Rows:
    if plugin is None:
        return rows
    tag = plugin["tag"]
    written = rows.get(tag, {})
    tagged = {
        **({"type": written} if isinstance(written, str) else written),
        "choices": list(_spell(plugin["members"])),
    }
    keys = {name: _with_spellings(row) for name, row in plugin["keys"].items()}
    # An empty list of open members leaves the table open to the plug-ins that are not listed.
    about = {**rows.get(".", {}), "tag": tag, "open": False if plugin.get("closed") else []}
    return {**rows, **keys, ".": about, tag: tagged}


def _with_spellings(row: Any) -> Any:
    return row if isinstance(row, str) or "when" not in row else {**row, "when": list(_spell(row["when"]))}


def _spell(names: list[str]) -> Iterator[str]:
    """Each name, and the spelling of its module: verifiers reads `best-of-n` and `best_of_n`."""
    for name in names:
        yield name
        if "-" in name:
            yield name.replace("-", "_")
