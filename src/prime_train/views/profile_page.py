"""Renders the document of a profile as one HTML page, with a timeline. Pure; the page loads nothing from a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from html import escape
from typing import Any

from prime_train.core.units import GIB, format_seconds
from prime_train.profile.critical_path import LaneSegment, StepWindow, is_rollout
from prime_train.profile.measurement import Measurement
from prime_train.views.profile import HEADER, compare, component_rows
from prime_train.views.text import sanitize

_WIDTH, _LANE_HEIGHT, _LABEL = 1200, 18, 150
_MOST_LANES = 100
_MOST_BOXES = 6_000  # of the whole page; narrower ones are left out first
_MEMORY_HEIGHT = 90
_COLORS = {
    "data": "#d97706",
    "tool": "#dc2626",
    "environment": "#f87171",
    "queue": "#a8a29e",
    "prefill": "#0891b2",
    "decode": "#0ea5e9",
    "weights": "#c026d3",
    "forward": "#16a34a",
    "backward": "#15803d",
    "forward_backward": "#16a34a",
    "optimizer": "#65a30d",
    "communication": "#9333ea",
    "checkpoint": "#b45309",
    "evaluate": "#64748b",
    "rollouts": "#d6d3d1",
    "other": "#e7e5e4",
}
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; padding: 0 1em; color: #1c1917 }
table { border-collapse: collapse } td, th { padding: 2px 12px; text-align: right; border-bottom: 1px solid #e7e5e4 }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
.bottleneck { color: #dc2626; font-weight: 600 } code { background: #f5f5f4; padding: 0 4px } li { margin: 6px 0 }
.key span { display: inline-block; margin-right: 14px }
.key i { display: inline-block; width: 11px; height: 11px; margin-right: 4px }
svg { width: 100%; height: auto; background: #fafaf9 } svg text { font: 11px system-ui, sans-serif }
"""


def page(document: Mapping[str, Any], measured: Measurement) -> str:
    """The whole page. `document`: that of `profile --json`. `measured`: its lanes. Text from outside is escaped."""
    title = _text(document["title"])
    body = [
        f"<h1>{title}</h1>",
        f"<p>{document['steps']} steps of {format_seconds(document['step_s'])}, after "
        f"{document['warm_up_steps']} of warm-up</p>",
        _components(document),
        _diagnosis(document),
        "<h2>Timeline</h2>",
        _legend(document),
        _timeline(measured),
        *_memory(document["memory"], measured.window),
        *(f"<p>Note: {_text(note)}</p>" for note in document["notes"]),
    ]
    head = f'<meta charset="utf-8"><title>{title}: profile</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _text(words: str) -> str:
    return escape(sanitize(words))


def _components(document: Mapping[str, Any]) -> str:
    rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in HEADER)}</tr>"]
    for row in component_rows(document):
        mark = ' class="bottleneck"' if row[-1] == "BOTTLENECK" else ""
        rows.append(f"<tr{mark}>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _diagnosis(document: Mapping[str, Any]) -> str:
    found = document["diagnosis"]
    evidence = "".join(f"<li>{_text(one)}</li>" for one in found["evidence"])
    changes = "".join(f"<li>{_change(one)}</li>" for one in document["recommendations"])
    estimates = "".join(
        f"<li>{_text(one['name'])}: measured {compare(one, ', estimated ')}, ratio {one['ratio']:.2f}</li>"
        for one in document["measured_over_estimated"]
    )
    parts = [f"<h2>Diagnosis: {_text(found['class'])}</h2><ul>{evidence}</ul>"]
    parts += [f"<h2>Recommendations</h2><ol>{changes}</ol>"] if changes else []
    parts += [f"<h2>Measured and estimated</h2><ul>{estimates}</ul>"] if estimates else []
    return "\n".join(parts)


def _change(one: Mapping[str, Any]) -> str:
    setting = f"<code>{_text(one['setting'])}</code> " if one["setting"] else ""
    gain = "" if one["gain"] is None else f"<b>{one['gain']:.2f}x</b>: "
    return f"{setting}{gain}{_text(one['text'])}"


def _legend(document: Mapping[str, Any]) -> str:
    names = [one["component"] for one in document["components"]]
    boxes = (f'<span><i style="background:{_color(name)}"></i>{_text(name)}</span>' for name in names)
    return '<p class="key">' + "".join(boxes) + "</p>"


def _color(component: str) -> str:
    return _COLORS.get(component, "#78716c")


def _timeline(measured: Measurement) -> str:
    """The critical path, and below it the lanes. Rollouts share rows, because a step has hundreds of them."""
    window = measured.window
    seen = {
        lane: inside
        for lane, segments in sorted(measured.lanes.items())
        if (inside := [one for one in segments if _is_inside(one, window)])
    }
    lanes = [(lane, segments) for lane, segments in seen.items() if not is_rollout(lane)]
    rollouts = _pack([segments for lane, segments in seen.items() if is_rollout(lane)])
    lanes += [(f"rollouts, row {number}", segments) for number, segments in enumerate(rollouts, 1)]
    rows: list[tuple[str, Iterable[LaneSegment]]] = [("critical path", measured.path), *lanes[:_MOST_LANES]]
    height = (len(rows) + 1) * _LANE_HEIGHT
    budget = _MOST_BOXES // len(rows)
    parts = [part for at, row in enumerate(rows) for part in _lane(*row, at * _LANE_HEIGHT, window, budget)]
    parts += _axis(window, len(rows) * _LANE_HEIGHT)
    left_out = len(lanes) - _MOST_LANES
    more = f"<p>{left_out} more lanes are not shown.</p>" if left_out > 0 else ""
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>{more}'


def _pack(rollouts: list[list[LaneSegment]]) -> list[list[LaneSegment]]:
    """Rows of rollouts that do not overlap: as many rows as rollouts run at once."""
    rows: list[list[LaneSegment]] = []
    ends: list[tuple[float, int]] = []  # a heap: when each row is free again
    for segments in sorted(rollouts, key=lambda lane: min(one.start_s for one in lane)):
        if ends and ends[0][0] <= min(one.start_s for one in segments):
            _, row = heappop(ends)
        else:
            row = len(rows)
            rows.append([])
        rows[row] += segments
        heappush(ends, (max(one.end_s for one in segments), row))
    return rows


def _is_inside(one: LaneSegment, window: StepWindow) -> bool:
    return one.end_s > window.start_s and one.start_s < window.end_s


def _x(at_s: float, window: StepWindow) -> float:
    inside_s = min(max(at_s, window.start_s), window.end_s) - window.start_s
    return _LABEL + (_WIDTH - _LABEL) * inside_s / window.seconds


def _lane(name: str, segments: Iterable[LaneSegment], top: int, window: StepWindow, budget: int) -> Iterator[str]:
    yield f'<text x="2" y="{top + 13}">{_text(name[:24])}</text>'
    inside = [one for one in segments if _is_inside(one, window)]
    for one in sorted(inside, key=lambda one: -one.seconds)[:budget]:
        left, right = _x(one.start_s, window), _x(one.end_s, window)
        yield (
            f'<rect x="{left:.2f}" y="{top + 2}" width="{max(0.2, right - left):.2f}" height="{_LANE_HEIGHT - 4}" '
            f'fill="{_color(one.component)}"><title>{_text(one.component)} on {_text(one.lane)}: '
            f"{format_seconds(one.seconds)}</title></rect>"
        )


def _axis(window: StepWindow, top: int) -> Iterator[str]:
    for number, (start_s, end_s) in enumerate(window.steps, 1):
        left = _x(start_s, window)
        yield f'<line x1="{left:.2f}" y1="0" x2="{left:.2f}" y2="{top}" stroke="#1c1917" stroke-width="0.4"/>'
        if number == 1 or len(window.steps) <= 20:
            yield f'<text x="{left + 2:.2f}" y="{top + 13}">{format_seconds(end_s - start_s)}</text>'


def _memory(lanes: Iterable[Mapping[str, Any]], window: StepWindow) -> Iterator[str]:
    """One curve for each process."""
    curves = list(lanes)
    peak_gib = max((one["peak_gib"] for one in curves), default=0)
    if not peak_gib:
        return
    yield "<h2>Memory</h2>"
    for one in curves:
        points = " ".join(
            f"{_x(window.start_s + at_s, window):.2f},{_MEMORY_HEIGHT * (1 - size / GIB / peak_gib) + 2:.2f}"
            for at_s, size in one["points"]
        )
        label = f"{one['lane']}: at most {one['peak_gib']:.2f} GiB"
        yield (
            f'<svg viewBox="0 0 {_WIDTH} {_MEMORY_HEIGHT + 4}" role="img"><text x="2" y="14">{_text(label)}</text>'
            f'<polyline points="{points}" fill="none" stroke="#0891b2" stroke-width="1.5"/></svg>'
        )
