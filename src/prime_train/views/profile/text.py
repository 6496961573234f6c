"""Renders the report of a profile as text: components, diagnosis, recommendations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prime_train.core.units import GIB, counted, format_seconds
from prime_train.profile.measurement import Measurement
from prime_train.profile.report import Report
from prime_train.views.text import Paint, sanitize

HEADER = ("component", "share", "a step", "p50", "p90", "busy", "status")
RIGHT = frozenset((1, 2, 3, 4, 5))

Table = Callable[[Sequence[Sequence[str]]], str]


def text(report: Report, paint: Paint, table: Table) -> str:
    """`table` renders the rows of the components below HEADER."""
    measured = report.measured
    step_s = measured.wall_s / measured.steps
    warm_up = f", after {report.warm_up_steps} of warm-up" if report.warm_up_steps else ""
    steps = f"{counted(measured.steps, 'step')} of {format_seconds(step_s)}{warm_up}"
    blocks = [
        f"{paint(sanitize(report.title), 'bold')}: {steps}",
        table([_paint_status(row, paint) for row in component_rows(report)]),
        "\n".join(_idle(measured)),
        "\n".join(_diagnosis(report, paint)),
        "\n".join(_recommendations(report, paint)),
        "\n".join(_comparisons(report, paint)),
        "\n".join(f"note: {note}" for note in report.notes),
    ]
    return "\n\n".join(block for block in blocks if block)


def component_rows(report: Report) -> list[tuple[str, ...]]:
    """The rows of the table, as text. Shares add up to 100 %; `busy` also counts what was hidden."""
    measured = report.measured
    return [
        (
            one.component.replace("_", " and "),
            f"{one.share:.1%}",
            format_seconds(one.critical_s / measured.steps),
            format_seconds(one.steps.p50_s),
            format_seconds(one.steps.p90_s),
            format_seconds(one.busy_s / measured.steps),
            "BOTTLENECK" if one.component in report.diagnosis.bottlenecks else "OK",
        )
        for one in measured.shares
    ]


def _paint_status(row: tuple[str, ...], paint: Paint) -> tuple[str, ...]:
    return (*row[:-1], paint(row[-1], "red" if row[-1] == "BOTTLENECK" else "green"))


def _idle(measured: Measurement) -> Iterator[str]:
    if measured.trainer_idle is not None:
        yield f"trainer idle {measured.trainer_idle:.1%}, while it waits for rollouts"
    if measured.engine_idle is not None:
        yield f"engine idle {measured.engine_idle:.1%}, without prefill and decode"
    for call in measured.calls:
        p50, p90, p99 = (format_seconds(seconds) for seconds in call.quantiles)
        calls = f"{call.component}: {call.calls:,} calls, {call.per_rollout:.1f} a rollout"
        yield f"{calls}; p50 {p50}, p90 {p90}, p99 {p99}"
    for memory in measured.memory:
        yield f"memory of {sanitize(memory.lane)}: at most {memory.peak_bytes / GIB:.2f} GiB"


def _diagnosis(report: Report, paint: Paint) -> Iterator[str]:
    found = report.diagnosis
    detail = f" ({found.share:.0%} of the critical path)" if found.share else ""
    throughput = ", throughput-bound" if found.is_throughput else ""
    yield f"{paint('DIAGNOSIS', 'bold')}  {paint(found.name, 'yellow')}{throughput}{detail}"
    yield from (f"  {sentence}" for sentence in found.evidence)


def _recommendations(report: Report, paint: Paint) -> Iterator[str]:
    if not report.recommendations:
        return
    yield paint("RECOMMENDATIONS", "bold")
    for number, one in enumerate(report.recommendations, 1):
        gain = "" if one.gain is None else f"expected {one.gain:.2f}x faster"
        head = "; ".join(part for part in (paint(one.setting, "cyan") if one.setting else "", gain) if part)
        yield f"  {number}. {head}"
        yield f"     {one.text}"


def _comparisons(report: Report, paint: Paint) -> Iterator[str]:
    if report.comparisons:
        yield paint("MEASURED / ESTIMATED", "bold")
    for one in report.comparisons:
        yield f"  {one.name}: {one.measured:.3g} {one.unit} / {one.estimated:.3g} {one.unit} = {one.ratio:.2f}"
