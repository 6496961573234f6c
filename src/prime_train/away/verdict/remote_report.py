"""Shows a verdict on a remote run: as lines, and as the document of `status --wandb --json`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prime_train.away.verdict.remote_reading import RemoteReading
from prime_train.away.verdict.remote_verdict import RemoteVerdict
from prime_train.core.units import format_seconds


def as_json(path: str, verdict: RemoteVerdict, readings: Sequence[RemoteReading]) -> dict[str, Any]:
    """The document of `status --wandb --json`. Times are in UTC; `exit_code` is that of the command."""
    return {
        "version": 1,
        "run": path,
        "verdict": verdict.verdict,
        "why": verdict.why,
        "fix": verdict.fix or None,
        "resumable": verdict.resumable,
        "complete": verdict.is_complete,
        "step": verdict.step,
        "max_steps": verdict.max_steps,
        "exit_code": int(verdict.exit_code),
        "polls": [_reading_as_json(reading) for reading in readings],
    }


def _reading_as_json(reading: RemoteReading) -> dict[str, Any]:
    return {
        "observed": _utc(reading.observed_s),
        "problem": reading.problem or None,
        "detail": reading.detail or None,
        "state": reading.state or None,
        "heartbeat": _utc(reading.heartbeat_s),
        "step": reading.step,
        "last_step": _utc(reading.last_step_s),
        "system_metrics": _utc(reading.system_metrics_s),
        "gpu_busy": None if reading.gpu_busy is None else round(reading.gpu_busy, 3),
        "step_s": None if reading.step_s is None else round(reading.step_s, 3),
        "run_directory": _utc(reading.run_dir_s),
        "job": reading.job or None,
        "run_exit_code": reading.exit_code,
    }


def as_lines(verdict: RemoteVerdict, readings: Sequence[RemoteReading]) -> list[tuple[str, str]]:
    """Label and text of each line of `status --wandb`; unknown values are left out."""
    newest = next((reading for reading in reversed(readings) if not reading.problem), None)
    lines = [("verdict", verdict.verdict), ("why", verdict.why)]
    if verdict.step is not None:
        last = "" if verdict.max_steps is None else f" of {verdict.max_steps:,}"
        lines.append(("step", f"{verdict.step:,}{last}"))
    if newest is not None:
        ages = (("heartbeat", newest.heartbeat_s), ("run directory", newest.run_dir_s))
        lines.extend((name, _format_age(newest.observed_s - at_s)) for name, at_s in ages if at_s is not None)
        if newest.step_s is not None:
            lines.append(("time of a step", f"{format_seconds(newest.step_s)}, median"))
        if newest.gpu_busy is not None:
            lines.append(("GPUs", f"{newest.gpu_busy:.0%} busy"))
    lines.append(("resumable", "yes" if verdict.resumable else "no"))
    if verdict.fix:
        lines.append(("fix", verdict.fix))
    return lines


def _format_age(age_s: float) -> str:
    return f"{format_seconds(age_s)} ago" if age_s >= 0 else f"{format_seconds(-age_s)} in the future"


def _utc(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
