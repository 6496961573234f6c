"""What was measured on sets of text and by benchmarks, as lines, a table and JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from prime_train.events import Evaluated, LaunchAsked, Measured, Record, TasksEvaluated
from prime_train.views.text import plain, table

Result = TypeVar("Result", Evaluated, TasksEvaluated, Measured)


def keep(records: Iterable[Record], kind: type[Result], name: Callable[[Result], object]) -> list[Result]:
    """The results of one kind in the order of their steps; of those with one step and one `name` the last.

    Those after the checkpoint that an attempt resumes from are dropped, as in metrics.jsonl.
    """
    found: dict[tuple[int, object], Result] = {}
    for record in records:
        event = record.event
        if isinstance(event, LaunchAsked):
            found = {key: one for key, one in found.items() if key[0] <= event.resume_step}
        elif isinstance(event, kind):
            found[event.step, name(event)] = event
    return sorted(found.values(), key=lambda one: one.step)


def curves(measured: Iterable[Measured]) -> list[tuple[Measured, Measured]]:
    """The first and the latest value of each metric of each set or benchmark, in the order of the first values."""
    found: dict[tuple[str, str], tuple[Measured, Measured]] = {}
    for one in measured:
        first, _ = found.get((one.name, one.metric), (one, one))
        found[one.name, one.metric] = first, one
    return list(found.values())


def describe(document: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each set or benchmark in the list of `as_json`: its metrics at first and at last."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for one in document:
        lines.setdefault(one["name"], []).append(one)
    return [f"{name}: {', '.join(map(_describe, found))} (step {found[0]['step']})" for name, found in lines.items()]


def _describe(one: Mapping[str, Any]) -> str:
    begun = "" if one["first_step"] == one["step"] else f"{one['first_value']:.4f} -> "
    return f"{one['metric']} {begun}{one['value']:.4f}"


def section(measured: Sequence[Measured]) -> str:
    """The report's table; empty where nothing was measured."""
    if not measured:
        return ""
    rows = [
        (plain(last.name), plain(last.metric), *map(_at_step, (first, last)), f"{last.count:,}")
        for first, last in curves(measured)
    ]
    return table(("evaluation", "metric", "first", "latest", "tokens, bytes or examples"), rows)


def _at_step(one: Measured) -> str:
    return f"{one.value:.4f} at step {one.step:,}"


def as_json(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """The latest value of each metric."""
    return [
        {
            "name": last.name,
            "metric": last.metric,
            "first_step": first.step,
            "first_value": round(first.value, 6),
            "step": last.step,
            "value": round(last.value, 6),
            "count": last.count,
        }
        for first, last in curves(measured)
    ]
