"""What was measured on sets of text and by benchmarks, as lines, a table and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from prime_train.events import LaunchAsked, Measured, Record
from prime_train.views.text import plain, table


class Curve(NamedTuple):
    """The first and the latest value of one metric of one set or benchmark."""

    first: Measured
    last: Measured


def kept(records: Iterable[Record]) -> tuple[Measured, ...]:
    """In the order of their steps, the last of repeated ones. Those after a step that was resumed from are dropped."""
    found: dict[tuple[int, str, str], Measured] = {}
    for record in records:
        match record.event:
            case LaunchAsked(resume_step=resumed):
                found = {key: one for key, one in found.items() if key[0] <= resumed}
            case Measured() as one:
                found[one.step, one.name, one.metric] = one
    return tuple(sorted(found.values(), key=lambda one: one.step))


def curves(measured: Iterable[Measured]) -> list[Curve]:
    """One for each metric, in the order of their first values."""
    found: dict[tuple[str, str], Curve] = {}
    for one in measured:
        earlier = found.get((one.name, one.metric))
        found[one.name, one.metric] = Curve(earlier.first if earlier else one, one)
    return list(found.values())


def describe(measured: Iterable[Measured]) -> list[str]:
    """One line for each set or benchmark: its metrics at first and at last."""
    lines: dict[str, list[Curve]] = {}
    for curve in curves(measured):
        lines.setdefault(curve.last.name, []).append(curve)
    return [f"{name}: {', '.join(map(_describe, found))} (step {found[0].last.step})" for name, found in lines.items()]


def _describe(curve: Curve) -> str:
    first, last = curve
    begun = "" if first.step == last.step else f"{first.value:.4f} -> "
    return f"{last.metric} {begun}{last.value:.4f}"


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
