"""Shows a verdict on a remote run: as lines, and as the document of `status --wandb --json`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        "heartbeat_age_s": _age_s(reading, reading.heartbeat_s),
        "step": reading.step,
        "last_step": _utc(reading.last_step_s),
        "system_metrics": _utc(reading.system_metrics_s),
        "gpu_busy": None if reading.gpu_busy is None else round(reading.gpu_busy, 3),
        "step_s": None if reading.step_s is None else round(reading.step_s, 3),
        "run_directory": _utc(reading.run_dir_s),
        "run_directory_age_s": _age_s(reading, reading.run_dir_s),
        "job": reading.job or None,
        "run_exit_code": reading.exit_code,
    }


def as_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line of `status --wandb`, from its document; unknown values are left out."""
    newest = next((poll for poll in reversed(document["polls"]) if not poll["problem"]), None)
    lines = [("verdict", document["verdict"]), ("why", document["why"])]
    if document["step"] is not None:
        last = "" if document["max_steps"] is None else f" of {document['max_steps']:,}"
        lines.append(("step", f"{document['step']:,}{last}"))
    if newest is not None:
        ages = (("heartbeat", newest["heartbeat_age_s"]), ("run directory", newest["run_directory_age_s"]))
        lines.extend((name, _format_age(age_s)) for name, age_s in ages if age_s is not None)
        if newest["step_s"] is not None:
            lines.append(("time of a step", f"{format_seconds(newest['step_s'])}, median"))
        if newest["gpu_busy"] is not None:
            lines.append(("GPUs", f"{newest['gpu_busy']:.0%} busy"))
    lines.append(("resumable", "yes" if document["resumable"] else "no"))
    return [*lines, ("fix", document["fix"])] if document["fix"] else lines


def _age_s(reading: RemoteReading, at_s: float | None) -> float | None:
    """Seconds before the reading; negative in the future."""
    return None if at_s is None else round(reading.observed_s - at_s, 1)


def _format_age(age_s: float) -> str:
    return f"{format_seconds(age_s)} ago" if age_s >= 0 else f"{format_seconds(-age_s)} in the future"


def _utc(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
