"""Turns a run's events and metrics into rows and alerts for W&B. The steps of the rows never decrease. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from prime_train import events
from prime_train.core.outside import parse_json
from prime_train.core.redaction import redact_all
from prime_train.core.units import GIB
from prime_train.events import Event

Level = Literal["INFO", "WARN", "ERROR"]


class WandbRow(NamedTuple):
    """Values at a training step."""

    step: int
    values: dict[str, float]


class Note(NamedTuple):
    """An alert, which W&B sends by mail or Slack as the user has configured there."""

    title: str
    text: str
    level: Level


class Counts(NamedTuple):
    """Totals up to now. Logging a total twice does no harm."""

    restarts: int = 0
    failures: int = 0
    alarms: int = 0
    alarms_by_name: tuple[tuple[str, int], ...] = ()
    deleted: int = 0
    freed_gib: float = 0.0
    failures_by_class: tuple[tuple[str, int], ...] = ()
    alerts_sent: int = 0
    alerts_failed: int = 0


_TOTALS = {
    "restarts": "run/restarts",
    "failures": "run/failures",
    "alarms": "alarms/all",
    "deleted": "cleanup/deleted",
    "freed_gib": "cleanup/freed_gib",
    "alerts_sent": "alerts/sent",
    "alerts_failed": "alerts/failed",
}
_BY_NAME = {"alarms_by_name": "alarms/", "failures_by_class": "failures/"}


def read_counts(summary: Mapping[str, Any]) -> Counts:
    """The totals that an earlier machine of the run has logged."""
    numbers = {name: value for name, value in summary.items() if isinstance(value, (int, float))}
    totals = {field: numbers[name] for field, name in _TOTALS.items() if name in numbers}
    named = {
        field: tuple(
            (name.removeprefix(prefix), int(value))
            for name, value in sorted(numbers.items())
            if name.startswith(prefix) and name not in _TOTALS.values()
        )
        for field, prefix in _BY_NAME.items()
    }
    return Counts(**totals, **named)  # type: ignore[arg-type]


def describe(event: Event) -> dict[str, str | int | None]:
    """Texts for the summary of the run at W&B: the cause of the latest failure, and the end of the run."""
    match event:
        case events.AttemptEnded(outcome="failed"):
            return {"run/cause_class": event.cause_class, "run/cause_id": event.cause_id, "run/cause": event.what}
        case events.RunOpened():
            return {"run/state": "running", "run/reason": "", "run/exit_code": None}
        case events.RunClosed(state=state, reason=reason):
            return {"run/state": state, "run/reason": reason}
        case _:
            return {}


def describe_end(exit_code: int) -> dict[str, str | int | None]:
    """The exit code by which `status --wandb` judges whether a run may continue. 255: its supervisor was killed."""
    return {"run/exit_code": exit_code, **({"run/state": "died"} if exit_code == 255 else {})}


def of_event(event: Event, counts: Counts, step: int) -> tuple[Counts, WandbRow | None, Note | None]:
    """The new counts, the row and the alert of an event. `step`: the current step, for events without one."""
    match event:
        case events.Evaluated(step=at, loss=loss, tokens=tokens):
            return counts, WandbRow(at, {"eval/loss": loss, "eval/tokens": tokens, "eval/step": at}), None
        case events.Measured(step=at, name=name, metric=metric, value=value):
            return counts, WandbRow(at, {f"eval/{name}/{metric}": value}), None
        case events.TasksEvaluated(step=at, environment=name):
            values = {"reward": event.reward, "failed": event.failed, "answer_tokens": event.answer_tokens}
            return counts, WandbRow(at, {f"eval/{name}/{key}": value for key, value in values.items()}), None
        case events.StepSkipped(step=at, reason=reason):
            return counts, WandbRow(at, {"train/skipped_step": at}), Note(f"step {at} was skipped", reason, "WARN")
        case events.CheckpointSaved(step=at, size_bytes=size, stall_s=stall_s, write_s=write_s):
            values = {"size_gib": size / GIB, "stall_s": stall_s, "write_s": write_s, "step": at}
            return counts, WandbRow(at, {f"checkpoint/{name}": value for name, value in values.items()}), None
        case events.LaunchAsked(attempt=attempt, resume_step=resume_step) if attempt > 1 or resume_step > 0:
            counts = counts._replace(restarts=counts.restarts + 1)
            return counts, WandbRow(step, {"run/restarts": counts.restarts, "run/resume_step": resume_step}), None
        case events.AttemptEnded(outcome="failed", attempt=attempt):
            counts = counts._replace(failures=counts.failures + 1)
            counts = counts._replace(failures_by_class=_add(counts.failures_by_class, event.cause_class))
            by_class = dict(counts.failures_by_class)[event.cause_class]
            row = WandbRow(step, {"run/failures": counts.failures, f"failures/{event.cause_class}": by_class})
            return counts, row, _note(f"attempt {attempt} failed: {event.cause_class}", event, "ERROR")
        case events.AlertSent(failed=failed):
            sent, lost = counts.alerts_sent + (not failed), counts.alerts_failed + bool(failed)
            counts = counts._replace(alerts_sent=sent, alerts_failed=lost)
            return counts, WandbRow(step, {"alerts/sent": sent, "alerts/failed": lost}), None
        case events.AlarmRaised() as alarm:
            return _alarm(alarm, counts, step)
        case events.CheckpointDeleted() | events.SpaceFreed(failed=""):
            freed_gib = event.size_bytes / GIB if isinstance(event, events.SpaceFreed) else 0.0
            counts = counts._replace(deleted=counts.deleted + 1, freed_gib=counts.freed_gib + freed_gib)
            row = WandbRow(step, {"cleanup/deleted": counts.deleted, "cleanup/freed_gib": counts.freed_gib})
            return counts, row, None
        case events.BatchShrunk(micro_batch=micro_batch):
            return counts, WandbRow(step, {"run/micro_batch": micro_batch}), None
        case events.SettingsApplied(step=at, version=version):
            return counts, WandbRow(at, {"run/settings_version": version}), None
        case events.GpuLeftOut(gpu=gpu, reason=reason):
            return counts, None, Note(f"{gpu} is left out", reason, "WARN")
        case events.RunClosed(state=state, reason=reason):
            level: Level = "ERROR" if state == "failed" else "INFO"
            return counts, None, Note(f"run {state}", f"step {step}: {reason}" if reason else f"step {step}", level)
        case _:
            return counts, None, None


def _alarm(alarm: events.AlarmRaised, counts: Counts, step: int) -> tuple[Counts, WandbRow, Note | None]:
    name = f"{alarm.watch}/{alarm.name}"
    counts = counts._replace(alarms=counts.alarms + 1, alarms_by_name=_add(counts.alarms_by_name, name))
    row = WandbRow(step, {"alarms/all": counts.alarms, f"alarms/{name}": dict(counts.alarms_by_name)[name]})
    if alarm.answer == "note":
        return counts, row, None
    level: Level = "WARN" if alarm.answer == "alert" else "ERROR"
    title = ": ".join(part for part in (alarm.watch, alarm.subject, alarm.what) if part)
    return counts, row, _note(title, alarm, level)


def _add(counted: tuple[tuple[str, int], ...], name: str) -> tuple[tuple[str, int], ...]:
    return tuple((dict(counted) | {name: dict(counted).get(name, 0) + 1}).items())


def _note(title: str, event: events.AttemptEnded | events.AlarmRaised, level: Level) -> Note:
    parts = ((name, getattr(event, name)) for name in ("what", "why", "fix", "where"))
    return Note(title, "\n".join(f"{name}: {value}" for name, value in parts if value), level)


def of_metrics(lines: Iterable[bytes]) -> list[WandbRow]:
    """The rows of complete lines of metrics.jsonl, in the same order; unreadable lines are skipped."""
    rows = []
    for line in lines:
        try:
            raw = parse_json(line)
            step = int(raw.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        numbers = {name: value for name, value in raw.items() if isinstance(value, (int, float))}
        rows.append(WandbRow(step, {f"train/{name}": value for name, value in numbers.items()}))
    return rows


def merge(metrics: Sequence[WandbRow], others: Sequence[WandbRow], last: int) -> list[WandbRow]:
    """One row per step, in order, none before `last`.

    Steps that a restart repeats are left out, because W&B accepts each step only once. Other values go to their own
    step, limited to the range from `last` to the newest step.
    """
    by_step: dict[int, dict[str, float]] = {row.step: dict(row.values) for row in metrics if row.step > last}
    newest = max(by_step, default=last)
    for row in others:
        by_step.setdefault(min(max(row.step, last), newest), {}).update(row.values)
    return [WandbRow(step, by_step[step]) for step in sorted(by_step)]


def config(resolved: str, hidden: tuple[str, ...]) -> dict[str, Any]:
    """The run's config for W&B, with every secret masked."""
    try:
        found = parse_json(resolved)
    except ValueError:
        return {}
    masked = redact_all(found, hidden)
    return masked if isinstance(masked, dict) else {}
