"""The JSON document of a profile, which the text and the page render. Pure.

`step_s` and `peak_memory_gib` have the names of metrics.jsonl, so `prime-train estimate --calibrate` reads the file.
"""

from __future__ import annotations

from typing import Any

from prime_train.core.units import GIB
from prime_train.profile.report import Report
from prime_train.views.text import pick

_MOST_SEGMENTS = 2_000
_MOST_POINTS = 2_000


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
                "component": one.component,
                "share": one.share,
                "critical_s": one.critical_s,
                "busy_s": one.busy_s,
                **one.steps._asdict(),
                "status": "BOTTLENECK" if one.component in found.bottlenecks else "OK",
            }
            for one in measured.shares
        ],
        "calls": [
            {**pick(one, "component", "calls", "per_rollout", "mean_s", "tokens"), **one.quantiles._asdict()}
            for one in measured.calls
        ],
        "trainer_idle": measured.trainer_idle,
        "engine_idle": measured.engine_idle,
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
