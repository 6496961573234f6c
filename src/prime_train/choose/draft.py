"""A config file in the making: its settings, each with the reason for its value, and their text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.estimate.candidate_changes import TABLES
from prime_train.toml.document import to_toml

_COLUMNS = 110


class Setting(NamedTuple):
    """One line of the file. `key` is dotted; that of an array of tables begins with it: "[[tasks]].kind".

    `why` is the comment: why this value, and what would change it. `field` is its RunSpec field, "" for the key itself.
    """

    key: str
    value: Any
    why: str = ""
    field: str = ""

    @property
    def table(self) -> str:
        """The header above the line; "" for a key of no table."""
        around = self.key.rpartition(".")[0]
        return around if not around or around.startswith("[[") else f"[{around}]"


class Choice(NamedTuple):
    """A chosen value, and why."""

    value: Any
    why: str


class Draft(NamedTuple):
    """Settings in the order of the file. `key_of` maps a RunSpec field to its key in the format of the file."""

    settings: tuple[Setting, ...]
    key_of: Callable[[str], str] = str

    def choose(self, choices: Mapping[str, Choice]) -> Draft:
        """The draft with other values of RunSpec fields; fields that it does not set are added."""
        left = dict(choices)
        kept = []
        for setting in self.settings:
            choice = left.pop(setting.field or setting.key, None)
            kept.append(setting if choice is None else setting._replace(value=choice.value, why=choice.why))
        added = (self._add(field, choice) for field, choice in left.items())
        return self._replace(settings=(*kept, *added))

    def _add(self, field: str, choice: Choice) -> Setting:
        key = self.key_of(field)
        if field in TABLES:  # such a table is on if it exists, and every block is computed again
            return Setting(f"{key}.freq", 1, choice.why, field)
        return Setting(key, choice.value, choice.why, field)

    def text(self, *title: str) -> str:
        """The file. `title` are the lines of the comment above it."""
        head = "".join(f"# {line}".rstrip() + "\n" for line in title)
        return head + "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        tables: dict[str, list[Setting]] = {"": []}
        for setting in self.settings:
            tables.setdefault(setting.table, []).append(setting)
        for table, settings in tables.items():
            yield f"\n{table}\n" if table else "\n" if settings else ""
            for setting in settings:
                yield from _write(setting)


def _write(setting: Setting) -> Iterator[str]:
    line = f"{setting.key.rpartition('.')[2]} = {to_toml(setting.value)}"
    if setting.why and len(line) + len(setting.why) + 4 > _COLUMNS:
        yield from (f"# {part}\n" for part in textwrap.wrap(setting.why, _COLUMNS, break_on_hyphens=False))
        yield f"{line}\n"
    else:
        yield f"{line}  # {setting.why}\n" if setting.why else f"{line}\n"
