"""Shows rows as a document, as table cells, and as CSV that no spreadsheet takes for formulas. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from prime_train.config.differences import Difference
from prime_train.core.units import format_count, format_usd
from prime_train.views.compare.conditions import COLUMNS
from prime_train.views.compare.rows import RunRow
from prime_train.views.text import date, rounded, sanitize

HEADER = ("RUN", "KIND", "MODEL", "CHANGED", "STATE", "STEP", "BEST", "LAST", "TOKENS/S", "COST", "W&B")
RIGHT = frozenset({5, 6, 7, 8, 9})
LEAST_NEEDED = (10, 2, 1, 9, 8)  # columns that a narrow terminal leaves out
NOT_KNOWN = "not known"
_FORMULA = ("=", "+", "-", "@", "\t")  # source: OWASP, CSV injection
_KEYS_SHOWN = 4


def document(row: RunRow) -> dict[str, Any]:
    """The row in `runs --json`; null is not known. `best_is_whole`: every step was read, so no other is better."""
    usd = row.usd and {name: rounded(value, 4) for name, value in row.usd._asdict().items()}
    return {
        "name": row.name,
        "path": str(row.path),
        "kind": row.kind,
        "model": row.model,
        "state": row.state,
        "reason": row.reason or None,
        "started_s": rounded(row.began_s, 3),
        "step": row.step,
        "max_steps": row.max_steps,
        "metric": row.metric,
        "best": rounded(row.best.value, 6) if row.best else None,
        "best_is_whole": row.best.is_whole if row.best else None,
        "last": rounded(row.last, 6),
        "held_out": rounded(row.held_out, 6),
        "tokens_per_s": rounded(row.tokens_per_s, 1),
        "usd": usd,
        "wandb": row.wandb,
        "changed": None if row.changed is None else [difference._asdict() for difference in row.changed],
    }


def cells(row: RunRow, *, wide: bool) -> tuple[str, ...]:
    """The row under HEADER. `wide`: every changed key, with its values."""
    total = "" if row.max_steps is None else f"/{row.max_steps:,}"
    return tuple(
        sanitize(text).replace("\n", " ")
        for text in (
            row.name,
            row.kind or "",
            row.model or "",
            _changed(row.changed, wide=wide),
            f"{row.state}: {row.reason}" if row.reason else row.state,
            "" if row.step is None else f"{row.step:,}{total}",
            _best(row),
            "" if row.last is None else f"{row.last:.4g}",
            "" if row.tokens_per_s is None else format_count(round(row.tokens_per_s)),
            NOT_KNOWN if row.usd is None else f"{format_usd(row.usd.low)}-{format_usd(row.usd.high)}",
            row.wandb or "",
        )
    )


def _best(row: RunRow) -> str:
    """A value that is at least as good as shown has a sign before it, because not every step was read."""
    if row.best is None:
        return ""
    sign = "" if row.best.is_whole else ">=" if row.metric == "reward" else "<="
    return f"{sign}{row.best.value:.4g}"


def _changed(changed: Sequence[Difference] | None, *, wide: bool) -> str:
    if changed is None:
        return "-"
    if wide:
        return ", ".join(f"{key} {value_text(before)} -> {value_text(after)}" for key, before, after in changed)
    more = f" and {len(changed) - _KEYS_SHOWN} more" if len(changed) > _KEYS_SHOWN else ""
    return ", ".join(difference.key for difference in changed[:_KEYS_SHOWN]) + more


def value_text(value: object) -> str:
    """A value from a config on one line."""
    return sanitize(value if isinstance(value, str) else json.dumps(value, default=str)).replace("\n", " ")


def as_csv(rows: Iterable[RunRow]) -> str:
    """A line for each run; what is not known is empty."""
    header = (*COLUMNS, "best_is_whole", "reason", "changed", "path")
    lines: list[Sequence[object]] = [header]
    for row in rows:
        values = {name: read(row) for name, read in COLUMNS.items()} | {"started": date(row.began_s)}
        changed = "" if row.changed is None else _changed(row.changed, wide=True)
        whole = "" if row.best is None else row.best.is_whole
        lines.append((*values.values(), whole, row.reason, changed, str(row.path)))
    return csv_text(lines)


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """CSV, without a line end at its end. Texts that a spreadsheet would run as a formula begin with an apostrophe."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([[_cell(value) for value in line] for line in lines])
    return written.getvalue().removesuffix("\n")


def _cell(value: object) -> object:
    if value is None:
        return ""
    if not isinstance(value, str):
        return value  # a number is no formula, also with a minus
    text = sanitize(value)  # a carriage return would end the line
    return f"'{text}" if text.startswith(_FORMULA) else text
