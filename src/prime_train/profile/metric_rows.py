"""Turns the rows of a metrics.jsonl into spans: the parts of each step, one after the other. Pure.

The file has how long each part of a step took, and not when. So the spans of a step have the measured lengths, and
an assumed order. What the wait for rollouts consists of is not in the file.

Source: prime-rl 2026-01 to 2026-08, trainer/rl/train.py and trainer/sft/train.py; the bundled trainer's StepMetrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.core.spans import Span
from prime_train.profile.critical_path import TRAINER

LANE = f"{TRAINER}0"
_LONGEST_S = 1e6


class MetricNames(NamedTuple):
    """The names of a trainer's metrics. `parts`: a metric in seconds and its component, in the order of a step."""

    parts: tuple[tuple[str, str], ...]
    step_s: str
    computing: str  # a row without it has no times of a step
    memory_gib: str


PRIME_RL = MetricNames(
    parts=(
        ("time/wait_for_batch", "rollouts"),
        ("time/load_data", "data"),
        ("time/forward_backward", "forward_backward"),
        ("time/save_ckpt", "checkpoint"),
        ("time/broadcast_weights", "weights"),
    ),
    step_s="time/step",
    computing="time/forward_backward",
    memory_gib="perf/peak_memory",
)
BUNDLED = MetricNames(
    parts=(
        ("rollouts_s", "rollouts"),
        ("data_s", "data"),
        ("forward_backward_s", "forward_backward"),
        ("optimizer_s", "optimizer"),
        ("weights_s", "weights"),
        ("checkpoint_s", "checkpoint"),
    ),
    step_s="step_s",
    computing="forward_backward_s",
    memory_gib="peak_memory_gib",
)


def spans_of_rows(rows: Iterable[Mapping[str, Any]], names: MetricNames = PRIME_RL) -> Iterator[Span]:
    """The spans of every step that has a row of times. A step that was repeated after a resume counts as it was last.

    The trainer's rows have time/forward_backward. The orchestrator writes time/step into rows of its own.
    """
    by_step = {step: row for row in rows if (step := _step(row)) is not None and names.computing in row}
    now_s = 0.0
    for step, row in sorted(by_step.items()):
        parts = [(component, _seconds(row, key)) for key, component in names.parts]
        step_s = max(_seconds(row, names.step_s), sum(seconds for _, seconds in parts))
        if step_s <= 0:
            continue
        yield Span("step", LANE, now_s, now_s + step_s, step)
        at_s = now_s
        for component, seconds in parts:
            if seconds > 0:
                yield Span(component, LANE, at_s, at_s + seconds, step)
            at_s += seconds
        now_s += step_s
        if peak_gib := _seconds(row, names.memory_gib):
            yield Span("memory", LANE, now_s, now_s, step, round(peak_gib * 2**30))


def idle_orchestrator(rows: Iterable[Mapping[str, Any]], warm_up_steps: int, steps: int | None = None) -> float | None:
    """The share of the orchestrator's time in which it waited for the trainer; None without such rows."""
    by_step = {step: row for row in rows if (step := _step(row)) is not None and "time/wait_for_policy" in row}
    counted = [row for _, row in sorted(by_step.items())][warm_up_steps:][:steps]
    total_s = sum(_seconds(row, "time/step") for row in counted)
    waited_s = sum(_seconds(row, "time/wait_for_policy") for row in counted)
    return min(1.0, waited_s / total_s) if total_s > 0 else None


def _step(row: Mapping[str, Any]) -> int | None:
    step = row.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _seconds(row: Mapping[str, Any], key: str) -> float:
    """A number of the row that is not negative; 0.0 if it has none."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return min(max(0.0, float(value)), _LONGEST_S)
