"""Shows the status of a run from its events, processes and disk, during the run and after it. Writes nothing."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prime_train.checkpoints.step_folders import find_newest_complete
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.core.units import GIB, counted, format_count, format_seconds
from prime_train.events.damage import Damage, describe
from prime_train.programs import recorded
from prime_train.supervise.core.snapshot import read_state
from prime_train.supervise.core.state import ActiveAlarm, Attempt, State, TaskScore
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.run import measures
from prime_train.views.text import pick

_ALIVE = {True: "alive", False: "gone", None: "on another machine"}
_OVER = ("stopped", "finished", "failed")


class ChildAlive(NamedTuple):
    """A process of the live attempt. `alive` is None if it runs on another machine."""

    role: str
    pid: int
    alive: bool | None


class Status(NamedTuple):
    """The status of one run at `now_s`. `supervised`: a supervisor holds the run's lock."""

    path: Path
    state: State
    supervised: bool
    children: tuple[ChildAlive, ...]
    newest_complete: int | None
    free_gib: float | None
    now_s: float
    is_stopped: bool = False  # Ctrl-Z or SIGSTOP stopped the supervisor, so nothing supervises the run
    scheduled: Literal["", "queued", "starting"] = ""  # a scheduler will start the run, or its job has begun
    place: str = ""  # in the queue of the scheduler
    damage: tuple[Damage, ...] = ()  # events that are not used

    @property
    def name(self) -> str:
        return self.state.run or self.path.name

    @property
    def word(self) -> str:
        """The state of the run; "died" if it was not closed and no supervisor is alive."""
        if self.scheduled:
            return self.scheduled
        if self.state.closed or self.supervised:
            return self.state.state
        return "died"

    @property
    def resumable(self) -> bool:
        """Whether `prime-train run` with the same config continues the run without a repair."""
        return self.word not in ("finished", "failed")

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last sign of life; None before the first one."""
        last_s = self.state.live.last_sign_s if self.state.live else self.state.progress_s
        last_s = self.state.last_event_s if last_s is None else last_s
        return None if last_s is None else max(0.0, self.now_s - last_s)

    @property
    def failure(self) -> Attempt | None:
        """The latest attempt that failed."""
        return next((attempt for attempt in reversed(self.state.attempts) if attempt.outcome == "failed"), None)


def fold_events(run_dir: RunDir) -> State:
    """The state of a run from all its events up to now."""
    return read_state(run_dir).state


def read_status(run_dir: RunDir, now_s: float) -> Status:
    """The status of a run. Reads events, /proc, the lock and the checkpoint folders."""
    state, damage = read_state(run_dir)
    held_by = find_holder(run_dir)
    here = held_by is None or held_by.here
    living = state.live.children if state.live else ()
    program, run = recorded(run_dir, strict=False)
    places = program.places(run, run_dir)
    newest = find_newest_complete(places.checkpoints, places.layout)
    try:
        free_gib: float | None = shutil.disk_usage(run_dir.path).free / GIB
    except OSError:
        free_gib = None
    return Status(
        path=run_dir.path,
        state=state,
        supervised=held_by is not None,
        children=tuple(
            ChildAlive(c.role, c.pid, Identity(c.pid, c.start_ticks).alive if here else None) for c in living
        ),
        newest_complete=newest.step if newest else None,
        free_gib=free_gib,
        now_s=now_s,
        is_stopped=held_by is not None and held_by.here and held_by.identity.is_stopped,
        damage=damage,
    )


def as_json(status: Status) -> dict[str, Any]:
    """The document of `status --json`. `micro_batch` is null unless it was reduced because memory ran out."""
    state, failure = status.state, status.failure
    return {
        "version": 1,
        "run": status.name,
        "path": str(status.path),
        "state": status.word,
        "resumable": status.resumable,
        "exit_code": state.exit_code,
        "reason": state.reason or None,
        "step": state.step,
        "max_steps": state.max_steps,
        "loss": _rounded(state.loss, 6),
        "validation_loss": _rounded(state.last_validation.loss if state.last_validation else None, 6),
        "reward": _rounded(state.reward, 6),
        "tasks": [_task_score(score) for score in state.task_scores],
        "measured": measures.as_json(state.measured),
        "rollouts_failed": state.rollouts_failed,
        "tokens_per_s": _rounded(state.tokens_per_s, 1),
        "phase": state.live.phase if state.live else None,
        "last_event": state.last_event or None,
        "last_progress_s": _rounded(status.silent_s, 1),
        "attempt": state.attempt_number,
        "restarts": state.restarts,
        "cause": _cause(failure),
        "alarms": [_alarm(standing) for standing in state.alarms],
        "supervisor": {"pid": state.supervisor_pid, "alive": status.supervised},
        "children": [child._asdict() for child in status.children],
        "gpus": [_gpu(uuid, state) for uuid in sorted({*state.left_out, *(uuid for uuid, _ in state.gpu_failures)})],
        "micro_batch": state.micro_batch,
        "disk": {"free_gib": _rounded(status.free_gib, 1)},
        "checkpoints": {"newest_complete": status.newest_complete},
    }


def all_as_json(statuses: Sequence[Status]) -> dict[str, Any]:
    """The document of `status --json` without a run name: one document per run."""
    return {"version": 1, "runs": [as_json(status) for status in statuses]}


def _rounded(value: float | None, digits: int) -> float | None:
    """A value that is not finite becomes null, because JSON has neither nan nor infinity."""
    return round(value, digits) if value is not None and math.isfinite(value) else None


def _task_score(score: TaskScore) -> dict[str, Any]:
    """`reward` is that of the latest evaluation on held-out tasks."""
    rewards = {"first_reward": _rounded(score.first_reward, 6), "reward": _rounded(score.reward, 6)}
    return pick(score, "environment", "first_step", "step") | rewards


def _cause(failure: Attempt | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    known = {"id": failure.cause_id or None, "class": failure.cause_class, "line": failure.what}
    return known | {"attempt": failure.number, **pick(failure, "what", "why", "fix", "where")}


def _gpu(uuid: str, state: State) -> dict[str, Any]:
    """A GPU whose errors ended attempts."""
    ended = [attempt for failed, attempt in state.gpu_failures if failed == uuid]
    return {"uuid": uuid, "attempts_ended": ended, "left_out": uuid in state.left_out}


def _alarm(standing: ActiveAlarm) -> dict[str, Any]:
    """`where`: a path, or the UUID of a GPU."""
    alarm = pick(standing.alarm, "watch", "name", "subject", "answer", "what", "why", "fix", "where")
    return alarm | {"since_s": round(standing.since_s, 3)}


def as_lines(status: Status) -> list[tuple[str, str]]:
    """Label and text of each line of `status RUN`; unknown values are left out."""
    state, failure = status.state, status.failure
    lines = [("state", _state_text(status)), ("step", state.progress_text.removeprefix("step "))]
    if state.loss is not None:
        lines.append(("loss", f"{state.loss:.4f}"))
    if state.first_validation and state.last_validation:
        first, last = state.first_validation, state.last_validation
        lines.append(("held-out loss", f"{first.loss:.4f} -> {last.loss:.4f} (step {last.step})"))
    if state.reward is not None:
        lines.append(("reward", f"{state.reward:.3f}, mean over the rollouts of the latest step"))
    lines.extend(("held-out tasks", _score_text(score)) for score in state.task_scores)
    lines.extend(("evaluation", text) for text in measures.describe(state.measured))
    if state.rollouts_failed:
        lines.append(("rollouts", f"{counted(state.rollouts_failed, 'rollout')} failed in an environment"))
    if state.tokens_per_s is not None and math.isfinite(state.tokens_per_s):
        lines.append(("speed", f"{format_count(round(state.tokens_per_s))} {state.unit}/s"))
    if status.silent_s is not None:
        lines.append(("last activity", f"{format_seconds(status.silent_s)} ago"))
    if state.last_event:
        lines.append(("last event", state.last_event))
    lines.append(("attempt", f"{state.attempt_number}, {counted(state.restarts, 'restart')}"))
    if failure is not None:
        lines.append(("last failure", f"attempt {failure.number} at step {failure.last_step}: {failure.what}"))
    lines.extend(("alarm", standing.alarm.what) for standing in state.alarms if standing.alarm.answer != "note")
    if notes := sum(standing.alarm.answer == "note" for standing in state.alarms):
        lines.append(("notes", f"{counted(notes, 'note')} of the watches: prime-train report {status.name}"))
    if state.micro_batch is not None:
        lines.append(("micro-batch", f"{state.micro_batch}, reduced because memory ran out"))
    if state.left_out:
        lines.append(("left out", f"{', '.join(state.left_out)}, if enough other GPUs remain"))
    if status.supervised and state.supervisor_pid:
        held = f", stopped by a signal; to continue: kill -CONT {state.supervisor_pid}" if status.is_stopped else ""
        lines.append(("supervisor", f"pid {state.supervisor_pid}{held}"))
    lines.extend((c.role, f"pid {c.pid}, {_ALIVE[c.alive]}") for c in status.children)
    newest = status.newest_complete
    lines.append(("checkpoint", "none complete" if newest is None else f"step {newest:,} is the newest complete one"))
    if status.free_gib is not None:
        lines.append(("disk", f"{status.free_gib:.1f} GiB free"))
    if damage := describe(status.damage):
        lines.append(("events", f"some cannot be used: {damage}"))
    lines.append(("directory", str(status.path)))
    return lines


def _score_text(score: TaskScore) -> str:
    begun = "" if score.first_step == score.step else f"{score.first_reward:.3f} -> "
    return f"{score.environment}: mean reward {begun}{score.reward:.3f} (step {score.step})"


def _state_text(status: Status) -> str:
    if status.scheduled:
        return f"{status.scheduled}: {status.place}"
    if status.word == "died":
        gone = "its supervisor is gone" if status.state.supervisor_pid else "no supervisor opened it"
        return f"died: {gone}; run the same command again to continue from the newest complete checkpoint"
    if status.word in _OVER:
        reason = f": {status.state.reason}" if status.state.reason else ""
        return f"{status.word}{reason} (exit code {status.state.exit_code})"
    phase = f", {status.state.live.phase}" if status.state.live else ""
    return f"{status.word}{phase}"


OVERVIEW = ("RUN", "STATE", "STEP", "LOSS", "HELD-OUT", "RESTARTS", "TRAINER", "LAST ACTIVITY")
OVERVIEW_LEAST_NEEDED = (6, 4, 5, 3)  # columns that a narrow terminal leaves out


def as_rows(statuses: Sequence[Status]) -> list[tuple[str, ...]]:
    """One row per run under the header OVERVIEW."""
    return [
        (
            status.name,
            status.word,
            status.state.progress_text.removeprefix("step ").replace(" of ", "/"),
            "" if status.state.loss is None else f"{status.state.loss:.3f}",
            "" if status.state.last_validation is None else f"{status.state.last_validation.loss:.3f}",
            str(status.state.restarts),
            next((f"pid {c.pid}" for c in status.children if c.alive), ""),
            "" if status.silent_s is None else f"{format_seconds(status.silent_s)} ago",
        )
        for status in statuses
    ]
