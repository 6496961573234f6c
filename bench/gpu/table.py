"""Shows what sessions measured beside what was expected, as Markdown. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu.expected import EXPECTATIONS, PUBLISHED, Expectation

Entry = dict[str, Any]


def show(files: Iterable[Path]) -> str:
    """Both tables for the results of these files; of a step that several have, the last one counts."""
    entries = {entry["step"]: entry for file in files if file.exists() for entry in json.loads(file.read_text("utf-8"))}
    if not entries:
        return "Nothing is measured.\n"
    lines = [*_about(entries), "", *_expectations(entries), "", *_speeds(entries), *_endings(entries)]
    return "\n".join(lines) + "\n"


def _about(entries: dict[str, Entry]) -> Iterator[str]:
    places = {
        f"{one['card']}, torch {one['torch']}, {one['date']}, commit {one['commit'] or '?'}"
        + (" (tiny: measures nothing)" if one.get("tiny") else "")
        for one in entries.values()
        if "card" in one
    }
    yield from sorted(places)


def _expectations(entries: dict[str, Entry]) -> Iterator[str]:
    """Those of the steps that there are. A tiny session measures nothing that could hold."""
    yield "| step | row | key | measured | expected | holds | source |"
    yield "|---|---|---|---|---|---|---|"
    for one in EXPECTATIONS:
        if one.step in entries:
            values = find_values(one, entries[one.step]["rows"])
            shown = _span(values) if values else "not measured"
            holds = "" if not values or entries[one.step].get("tiny") else _judge(one, values)
            yield f"| {one.step} | {one.what} | {one.key} | {shown} | {_bounds(one)} | {holds} | {one.source} |"


def find_values(one: Expectation, rows: list[Entry]) -> list[Any]:
    """The values of the key in the rows that the expectation is about."""
    return [row[one.key] for row in rows if one.what in row["what"] and row.get(one.key) is not None]


def _judge(one: Expectation, values: list[Any]) -> str:
    return "yes" if all(is_inside(one, value) for value in values) else "**no**"


def is_inside(one: Expectation, value: Any) -> bool:
    """False for what is no number: a value that is not finite is text."""
    if not isinstance(value, int | float):
        return False
    return (one.low is None or one.low <= value) and (one.high is None or value <= one.high)


def _speeds(entries: dict[str, Entry]) -> Iterator[str]:
    sizes = {name: entry["rows"] for name, entry in entries.items() if name.startswith("speed-")}
    lines = [line for name, rows in sizes.items() if (line := _speed_line(name, rows))]
    if not lines:
        return
    others = [f"{one.name}, scaled by peak" for one in PUBLISHED]
    heads = ["milliseconds of a step (MFU)", "prime-train", "hand-written loop", "ahead", "estimate", *others]
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (*lines, "", *(f"- {one.name}: {one.source}" for one in PUBLISHED), "")


def _speed_line(name: str, rows: list[Entry]) -> str:
    """A line of the table of speeds; "" if the trainer's own was not measured."""
    measured = {row["what"]: row for row in rows if "step_ms" in row}
    ours, hand = measured.get("prime-train"), measured.get("hand-written loop", {})
    if ours is None:
        return ""
    ahead = hand.get("prime_train_speed")
    cells = [name, _speed(ours), _speed(hand), "" if ahead is None else f"{ahead:.3f}", _predicted(ours)]
    return f"| {' | '.join([*cells, *(_scaled(ours, one.mfu) for one in PUBLISHED)])} |"


def _speed(row: Entry) -> str:
    if "step_ms" not in row:
        return "not measured"
    return f"{row['step_ms']:.1f}" + ("" if row.get("mfu") is None else f" ({row['mfu']:.3f})")


def _predicted(row: Entry) -> str:
    if "predicted_ms" not in row:
        return ""
    span = f"{row['predicted_ms_low']:.0f} to {row['predicted_ms_high']:.0f}"
    return f"{row['predicted_ms']:.0f} ({span}), {row['predicted_for']}"


def _scaled(row: Entry, mfu: float) -> str:
    """The milliseconds that the same step takes at the published part of this card's peak."""
    if row.get("peak_flops") is None:
        return ""
    return f"{1e3 * row['flops'] / row['peak_flops'] / mfu:.1f} ({mfu:.3f})"


def _endings(entries: dict[str, Entry]) -> Iterator[str]:
    yield "| step | ended | seconds | failed rows |"
    yield "|---|---|---|---|"
    for name, entry in entries.items():
        failed = [f"{row['what']}: {row['failed']}" for row in entry["rows"] if "failed" in row]
        ended = entry["ended"] if entry["ended"] != "skipped" else f"skipped: {entry['tail']}"
        yield f"| {name} | {ended} | {entry['seconds']} | {'; '.join(failed).replace('|', '/')} |"


def _span(values: list[Any]) -> str:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return ", ".join(str(value) for value in values)
    low, high = min(numbers), max(numbers)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _bounds(one: Expectation) -> str:
    match one.low, one.high:
        case None, high:
            return f"at most {high:g}"
        case low, None:
            return f"at least {low:g}"
        case low, high:
            return f"{low:g}" if low == high else f"{low:g} to {high:g}"
