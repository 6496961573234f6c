"""Makes the JSON document of a profile, and renders it as text: components, diagnosis, recommendations. Pure.

`step_s` and `peak_memory_gib` have the names of metrics.jsonl, so `prime-train estimate --calibrate` reads the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prime_train.core.units import GIB, counted, format_seconds
from prime_train.profile.report import Report
from prime_train.views.text import Paint, pick, sanitize

_MOST_SEGMENTS = 2_000
_MOST_POINTS = 2_000
HEADER = ("component", "share", "a step", "p50", "p90", "busy", "status")
RIGHT = frozenset((1, 2, 3, 4, 5))
Table = Callable[[Sequence[Sequence[str]]], str]


def document(report: Report) -> dict[str, Any]:
    """The document of `profile --json`."""
    measured, found = report.measured, report.diagnosis
    peak_bytes = max((one.peak_bytes for one in measured.memory), default=0)
    start_s = measured.window.start_s
    return {
        "version": 1,
        "title": report.title,
        "steps": measured.steps,
        "warm_up_steps": report.warm_up_steps,
        "step_s": measured.wall_s / measured.steps,
        "peak_memory_gib": peak_bytes / GIB if peak_bytes else None,
        "step_times_s": list(measured.step_s),
        "components": [
            {
                **pick(one, "component", "share", "critical_s", "busy_s"),
                **one.steps._asdict(),
                "status": "BOTTLENECK" if one.component in found.bottlenecks else "OK",
            }
            for one in measured.shares
        ],
        "calls": [
            {**pick(one, "component", "calls", "per_rollout", "mean_s", "tokens"), **one.quantiles._asdict()}
            for one in measured.calls
        ],
        **pick(measured, "trainer_idle", "engine_idle"),
        "answers_decoded_at_once": measured.decoding,
        "memory": [
            {"lane": one.lane, "peak_gib": one.peak_bytes / GIB, "points": [list(point) for point in _thin(one.points)]}
            for one in measured.memory
        ],
        "critical_path": [
            [one.component, one.lane, one.start_s - start_s, one.end_s - start_s]
            for one in measured.path[:_MOST_SEGMENTS]
        ],
        "diagnosis": {
            "class": found.name,
            "share": found.share,
            "throughput_bound": found.is_throughput,
            "evidence": list(found.evidence),
        },
        "recommendations": [pick(one, "kind", "text", "setting", "gain") for one in report.recommendations],
        "measured_over_estimated": [
            pick(one, "name", "unit", "measured", "estimated", "ratio") for one in report.comparisons
        ],
        "notes": list(report.notes),
    }


def _thin(points: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    return points[:: 1 + len(points) // _MOST_POINTS]


def text(document: Mapping[str, Any], paint: Paint, table: Table) -> str:
    """`document`: that of `profile --json`. `table` renders the rows of the components below HEADER."""
    warm_up = f", after {document['warm_up_steps']} of warm-up" if document["warm_up_steps"] else ""
    steps = f"{counted(document['steps'], 'step')} of {format_seconds(document['step_s'])}{warm_up}"
    blocks = [
        f"{paint(sanitize(document['title']), 'bold')}: {steps}",
        table([_paint_status(row, paint) for row in component_rows(document)]),
        "\n".join(_idle(document)),
        "\n".join(_diagnosis(document["diagnosis"], paint)),
        "\n".join(_recommendations(document["recommendations"], paint)),
        "\n".join(_comparisons(document["measured_over_estimated"], paint)),
        "\n".join(f"note: {note}" for note in document["notes"]),
    ]
    return "\n\n".join(block for block in blocks if block)


def component_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the table, as text. Shares add up to 100 %; `busy` also counts what was hidden."""
    steps = document["steps"]
    return [
        (
            one["component"].replace("_", " and "),
            f"{one['share']:.1%}",
            format_seconds(one["critical_s"] / steps),
            format_seconds(one["p50_s"]),
            format_seconds(one["p90_s"]),
            format_seconds(one["busy_s"] / steps),
            one["status"],
        )
        for one in document["components"]
    ]


def _paint_status(row: tuple[str, ...], paint: Paint) -> tuple[str, ...]:
    return (*row[:-1], paint(row[-1], "red" if row[-1] == "BOTTLENECK" else "green"))


def _idle(document: Mapping[str, Any]) -> Iterator[str]:
    if document["trainer_idle"] is not None:
        yield f"trainer idle {document['trainer_idle']:.1%}, while it waits for rollouts"
    if document["engine_idle"] is not None:
        yield f"engine idle {document['engine_idle']:.1%}, without prefill and decode"
    for call in document["calls"]:
        p50, p90, p99 = (format_seconds(call[name]) for name in ("p50_s", "p90_s", "p99_s"))
        calls = f"{call['component']}: {call['calls']:,} calls, {call['per_rollout']:.1f} a rollout"
        yield f"{calls}; p50 {p50}, p90 {p90}, p99 {p99}"
    for memory in document["memory"]:
        yield f"memory of {sanitize(memory['lane'])}: at most {memory['peak_gib']:.2f} GiB"


def _diagnosis(found: Mapping[str, Any], paint: Paint) -> Iterator[str]:
    detail = f" ({found['share']:.0%} of the critical path)" if found["share"] else ""
    throughput = ", throughput-bound" if found["throughput_bound"] else ""
    yield f"{paint('DIAGNOSIS', 'bold')}  {paint(found['class'], 'yellow')}{throughput}{detail}"
    yield from (f"  {sentence}" for sentence in found["evidence"])


def _recommendations(changes: Sequence[Mapping[str, Any]], paint: Paint) -> Iterator[str]:
    if not changes:
        return
    yield paint("RECOMMENDATIONS", "bold")
    for number, one in enumerate(changes, 1):
        gain = "" if one["gain"] is None else f"expected {one['gain']:.2f}x faster"
        head = "; ".join(part for part in (paint(one["setting"], "cyan") if one["setting"] else "", gain) if part)
        yield f"  {number}. {head}"
        yield f"     {one['text']}"


def _comparisons(rows: Sequence[Mapping[str, Any]], paint: Paint) -> Iterator[str]:
    if rows:
        yield paint("MEASURED / ESTIMATED", "bold")
    yield from (f"  {one['name']}: {compare(one, ' / ')} = {one['ratio']:.2f}" for one in rows)


def compare(row: Mapping[str, Any], between: str) -> str:
    """The measured and the estimated value of a row, with their unit."""
    measured, estimated = (f"{row[name]:.3g} {row['unit']}" for name in ("measured", "estimated"))
    return f"{measured}{between}{estimated}"
