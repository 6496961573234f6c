"""Folds one event into the document that a job has on a machine, as the page shows it. Each list is bounded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prime_train.core.machines import find_machine
from prime_train.events import (
    AlarmCleared,
    AlarmRaised,
    AttemptEnded,
    CheckpointDeleted,
    CheckpointPinned,
    CheckpointSaved,
    CommandAccepted,
    Evaluated,
    Event,
    EvidenceKept,
    GpuLeftOut,
    GpuReturned,
    GpuTested,
    InstabilityFound,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    SettingsAccepted,
    SettingsApplied,
    StopAsked,
    TrainerStarted,
)

Document = Mapping[str, Any]
Describe = Callable[[Event], str]
FAILURES_KEPT = 50  # of one job
CHECKPOINTS_KEPT = 100
ENTRIES_KEPT = 60
ALARMS_KEPT = 10
POINTS_KEPT = 256  # in a curve; with more each second one is dropped
_MARKS_KEPT = 50
SETTINGS_KEPT = 20
_MOST_CHARACTERS = 200  # of a text: a document fits into one key
_MOST_RANKS = 1024
_MOST_LEFT_OUT = 64  # GPUs
ATTEMPTS_KEPT = 100  # whose times give the hours
COLUMNS = ("loss", "tokens_per_s", "reward", "grad_norm")
FIGURES = COLUMNS[:3]  # the latest ones are in the row


def keep_quiet(_event: Event) -> str:
    return ""


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    return text[:most]


def fold_event(document: Document, record: Record, describe: Describe = keep_quiet) -> Document:
    """The document after one event."""
    after = {**document, **_find_changes(document, record)}
    if text := describe(record.event):
        version = getattr(record.event, "version", None)
        entry = {
            "key": f"{record.writer[:40]}/{record.life[:32]}/{record.seq}",
            "time_s": record.time_s,
            "kind": record.event.kind,
            "text": cut(text),
            "attempt": after.get("attempt", 0),
            "step": getattr(record.event, "step", after.get("step", 0)),
            "details": {"version": version} if type(version) is int else {},
        }
        after["entries"] = [*after["entries"], entry][-ENTRIES_KEPT:]
    return after


def _find_changes(document: Document, record: Record) -> Document:
    match record.event:
        case RunOpened() | LaunchAsked() | AttemptEnded() | RunClosed() | StopAsked() | CommandAccepted():
            return _fold_supervisor(document, record)
        case GpuLeftOut() | GpuReturned() | GpuTested():
            return _fold_gpu(document, record.event)
        case InstabilityFound() as found:
            return {"proposal": None if found.auto or not (found.values or found.go_back_to) else _propose(found)}
        case Evaluated(step=step, loss=loss):
            held_out = add_point(document["held_out"], step, [finite(loss)])
            return {"validation_loss": finite(loss), "held_out": held_out}
        case TrainerStarted(rank=rank) as started if rank < _MOST_RANKS:
            seen = {"device": started.device[:64], "pid": started.pid, "writer": record.writer[:40]}
            ranks = {**document["ranks"], str(rank): seen}
            device = seen["device"] if rank == 0 else document.get("device")
            return {"ranks": ranks, "world_size": started.world_size, "device": device}
        case Phase(name=name):
            return {"state": name[:64]}
        case Progress() as progress:
            return _fold_progress(document, progress, record)
        case AlarmRaised(watch=watch, name=name, subject=subject) as alarm:
            names = ("watch", "name", "subject", "answer", "what", "why", "fix", "where")
            raised = {each: cut(getattr(alarm, each)) for each in names} | {"since_s": record.time_s}
            return {"alarms": [*_other_alarms(document, watch, name, subject), raised][-ALARMS_KEPT:]}
        case AlarmCleared(watch=watch, name=name, subject=subject):
            return {"alarms": _other_alarms(document, watch, name, subject)}
        case CheckpointSaved(step=step, size_bytes=size):
            kept = [one for one in document["checkpoints"] if one["step"] != step]
            saved = {"step": step, "size_bytes": size, "saved_s": record.time_s}
            return {"checkpoints": [*kept, saved][-CHECKPOINTS_KEPT:], "newest_complete": step}
        case CheckpointDeleted(step=step):
            return {"checkpoints": [one for one in document["checkpoints"] if one["step"] != step]}
        case CheckpointPinned(step=step, pinned=pinned):
            others = [one for one in document.get("pins", []) if one != step]
            return {"pins": [*others, *([step] if pinned else [])][-CHECKPOINTS_KEPT:]}
        case EvidenceKept(folder=folder):
            return {"evidence": cut(folder)}
        case SettingsAccepted() as accepted:
            values = dict(_split(text) for text in accepted.values[:8])
            change = {"version": accepted.version, "values": values, "requested_s": record.time_s}
            change |= {"by": cut(accepted.by), "why": cut(accepted.why)}
            settings = [one for one in document["settings"] if one["version"] != accepted.version]
            # A change by a person takes the place of a proposal.
            return {"settings": [*settings, change][-SETTINGS_KEPT:], "proposal": None}
        case SettingsApplied() as applied:
            marked = _mark(document, applied.step, "settings", f"settings {applied.version}")
            return {**marked, "max_steps": applied.max_steps, "settings_version": applied.version}
    return {}


def _fold_supervisor(document: Document, record: Record) -> Document:
    match record.event:
        case RunOpened(run=run, max_steps=max_steps):
            began_s = document.get("began_s", record.time_s)
            opened = {"run": cut(run), "max_steps": max_steps, "state": "starting", "exit_code": None}
            # The beat of the agent before may be the end of the run.
            opened |= {"stopping": False, "halting": "", "proposal": None}
            return {**opened, "beat": {}, "began_s": began_s, "reason": ""}
        case LaunchAsked(attempt=attempt, resume_step=step):
            failed = document["failures"][-1:]
            restarts = document.get("restarts", 0) + any(one["attempt"] == attempt - 1 for one in failed)
            launched = {"state": "starting", "attempt": attempt, "resume_step": step, "ranks": {}, "halting": ""}
            launched |= {
                "first_step": None,
                "stepped_s": None,
                "step": step,
                "newest_complete": step,
                "tokens_per_s": None,
            }
            marked = _mark(document, step, "attempt", f"attempt {attempt}") if attempt > 1 else {}
            times = [*document["attempts"], {"number": attempt, "launched_s": record.time_s}][-ATTEMPTS_KEPT:]
            launched |= {"restarts": restarts, "attempts": times, "times": {}}
            launched |= {name: _drop_after(document[name], step) for name in ("curve", "held_out", "rate")}
            return {**launched, **marked}
        case AttemptEnded() as event:
            return _end_attempt(document, event, record)
        case CommandAccepted() as accepted:
            return _fold_command(document, accepted)
        case StopAsked() if not document.get("halting"):
            return {"stopping": True}
        case RunClosed(state=state, exit_code=code, reason=reason):
            return {"state": state, "exit_code": code, "reason": cut(reason), "alarms": []}
    return {}


def _fold_command(document: Document, event: CommandAccepted) -> Document:
    takes_machine = any(find_machine(one) >= 0 for one in event.gpus)
    how = "pause" if event.command == "drain" and takes_machine else event.command
    halting = {"halting": how} if how in ("pause", "go_back", "drain") else {}
    proposal = document.get("proposal")
    is_answer = event.command == "accept" and proposal is not None and proposal["number"] == event.step
    return halting | ({"proposal": None} if is_answer or event.command == "go_back" else {})


def _fold_gpu(document: Document, event: GpuLeftOut | GpuReturned | GpuTested) -> Document:
    """A GPU that the run leaves out is not among those of the machine any more, until it is returned."""
    gpu, others = cut(event.gpu, 64), [one for one in document["left_out"] if one["uuid"] != event.gpu[:64]]
    match event:
        case GpuLeftOut():
            gpus = [one for one in document.get("gpus", []) if one["uuid"] != gpu]
            return {"left_out": [*others, {"uuid": gpu, "test": None}][-_MOST_LEFT_OUT:], "gpus": gpus}
        case GpuReturned():
            return {"left_out": others}
        case GpuTested(passed=passed, what=what) if len(others) < len(document["left_out"]):
            return {"left_out": [*others, {"uuid": gpu, "test": {"passed": passed, "what": cut(what)}}]}
    return {}


def _propose(found: InstabilityFound) -> Document:
    texts = [cut(text) for text in found.values[:8]]
    numbers = {name: getattr(found, name) for name in ("attempt", "number", "step", "go_back_to")}
    return {**numbers, "what": cut(found.what), "values": texts}


def _end_attempt(document: Document, event: AttemptEnded, record: Record) -> Document:
    alarms = [one for one in document.get("alarms", []) if one["answer"] in ("note", "alert", "leave")]
    ended = {"tokens_per_s": None, "alarms": alarms, "newest_complete": event.newest_complete, "evidence": None}
    end = {"ended_s": record.time_s, "returncode": event.returncode}
    ended["attempts"] = [one | end if one["number"] == event.attempt else one for one in document["attempts"]]
    if event.outcome == "failed":
        failures = [*document["failures"], _describe_failure(document, event, record)]
        return {**ended, "failures": failures[-FAILURES_KEPT:], "state": "restarting"}
    if document.get("halting") != "pause":
        return ended
    # No rank of a drained machine is known until an attempt has one again.
    has_drained = any(find_machine(one["uuid"]) >= 0 for one in document["left_out"])
    return {**ended, "state": "paused"} | ({"ranks": {}} if has_drained else {})


def _describe_failure(document: Document, event: AttemptEnded, record: Record) -> Document:
    names = ("cause_class", "cause_id", "what", "why", "fix", "where")
    failure: dict[str, Any] = {name: cut(getattr(event, name)) for name in names}
    failure |= {"attempt": event.attempt, "returncode": event.returncode, "newest_complete": event.newest_complete}
    failure |= {"step": document.get("step", 0), "time_s": record.time_s}
    return failure | {"evidence": document.get("evidence"), "recovered_s": None}


def _fold_progress(document: Document, event: Progress, record: Record) -> Document:
    points = [finite(getattr(event, name)) for name in COLUMNS]  # a loss may be NaN, which no JSON has
    numbers = dict(zip(FIGURES, points, strict=False))
    odd = {
        name: str(value) for name in FIGURES if (value := getattr(event, name)) is not None and numbers[name] is None
    }
    seen = {"state": "train", "step": event.step, "progress_s": record.time_s, "not_finite": odd}
    seen |= {"unit": cut(event.unit), "curve": add_point(document["curve"], event.step, points)}
    if document.get("stepped_s") is None:
        seen |= {"first_step": event.step, "stepped_s": record.time_s}
    if event.total is not None:
        seen["max_steps"] = event.total
    if any(one["recovered_s"] is None for one in document["failures"]):
        seen["failures"] = [_recover(one, record.time_s) for one in document["failures"]]
    rank = next((name for name, one in document["ranks"].items() if one["writer"] == record.writer[:40]), None)
    if rank is not None:
        seen["ranks"] = {**document["ranks"], rank: {**document["ranks"][rank], "step": event.step}}
    return {**seen, **numbers}


def _recover(failure: Mapping[str, Any], now_s: float) -> Mapping[str, Any]:
    """The failure with the time until the next step, if it has none."""
    if failure["recovered_s"] is not None:
        return failure
    return {**failure, "recovered_s": round(max(0.0, now_s - failure["time_s"]), 1)}


def _other_alarms(document: Document, watch: str, name: str, subject: str) -> list[Any]:
    key = (cut(watch), cut(name), cut(subject))
    return [one for one in document.get("alarms", []) if (one["watch"], one["name"], one["subject"]) != key]


def _mark(document: Document, step: int, kind: str, text: str) -> Document:
    mark = {"step": step, "kind": kind, "text": text}
    return {"marks": [*(one for one in document["marks"] if one != mark), mark][-_MARKS_KEPT:]}


def _split(text: str) -> tuple[str, str]:
    name, _, value = text[:100].partition(" = ")
    return name, value


def add_point(curve: Mapping[str, Any], step: int, values: list[float | None]) -> Document:
    """The curve with a further point. `every`: one in so many is kept; `left_out`: so many since the last kept one."""
    every, left_out, points = curve.get("every", 1), curve.get("left_out", 0), curve.get("points", [])
    if left_out + 1 < every:
        return {"every": every, "left_out": left_out + 1, "points": points}
    points = [*points, [step, *values]]
    if len(points) > POINTS_KEPT:
        points, every = points[::2], 2 * every
    return {"every": every, "left_out": 0, "points": points}


def _drop_after(curve: Mapping[str, Any], step: int) -> Document:
    """The curve up to a step from which the run goes on."""
    return {**curve, "points": [point for point in curve.get("points", []) if point[0] <= step]}


def finite(value: float | None) -> float | None:
    return value if value is not None and value - value == 0.0 else None
