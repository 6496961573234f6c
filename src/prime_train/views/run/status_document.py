"""Makes the one JSON document of a run, which `status`, the live screen and a page render. Pure."""

from __future__ import annotations

import math
from typing import Any

from prime_train.events.record import describe
from prime_train.supervise.core.state import ActiveAlarm, AttemptState, State, TaskScore, Validation
from prime_train.views.run import measures
from prime_train.views.run.status import Status
from prime_train.views.text import pick, rounded


def status_document(status: Status) -> dict[str, Any]:
    """The document of `status --json`. `micro_batch` is null unless it was reduced because memory ran out.

    A number that is not finite is null, because JSON has neither nan nor infinity, and is named in `not_finite`.
    """
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
        "loss": rounded(state.loss, 6),
        "validation_loss": rounded(state.last_validation.loss if state.last_validation else None, 6),
        "reward": rounded(state.reward, 6),
        "tasks": [_task_score(score) for score in state.task_scores],
        "measured": measures.as_json(state.measured),
        "rollouts_failed": state.rollouts_failed,
        "tokens_per_s": rounded(state.tokens_per_s, 1),
        "unit": state.unit,
        "phase": state.live.phase if state.live else None,
        "last_event": state.last_event or None,
        "last_progress_s": rounded(status.silent_s, 1),
        "attempt": state.attempt_number,
        "restarts": state.restarts,
        "cause": _cause(failure),
        "alarms": [_alarm(standing) for standing in state.alarms],
        "supervisor": {"pid": state.supervisor_pid, "alive": status.supervised, "stopped_by_signal": status.is_stopped},
        "children": [child._asdict() for child in status.children],
        "gpus": [_gpu(uuid, state) for uuid in sorted({*state.left_out, *(uuid for uuid, _ in state.gpu_failures)})],
        "micro_batch": state.micro_batch,
        "disk": {"free_gib": rounded(status.free_gib, 1)},
        "checkpoints": {"newest_complete": status.newest_complete, "saving": state.saving_step},
        "is_endless": state.is_endless,
        "left_s": rounded(status.left_s, 1),
        "validations": [_validation(found) for found in (state.first_validation, state.last_validation) if found],
        "not_finite": _not_finite(state),
        "last_event_age_s": rounded(status.last_event_age_s, 1),
        "server": _server(state),
        "place": status.place or None,
        "events_damage": describe(status.damage) or None,
    }


def _not_finite(state: State) -> dict[str, str]:
    """The name of each number that is not finite, with "nan", "inf" or "-inf"."""
    numbers = pick(state, "loss", "reward", "tokens_per_s")
    return {name: str(value) for name, value in numbers.items() if value is not None and not math.isfinite(value)}


def _task_score(score: TaskScore) -> dict[str, Any]:
    """`reward` is that of the latest evaluation on held-out tasks."""
    rewards = {"first_reward": rounded(score.first_reward, 6), "reward": rounded(score.reward, 6)}
    return pick(score, "environment", "first_step", "step") | rewards


def _validation(found: Validation) -> dict[str, Any]:
    return {"step": found.step, "loss": rounded(found.loss, 6)}


def _cause(failure: AttemptState | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    known = {"id": failure.cause_id or None, "class": failure.cause_class, "line": failure.what}
    place = {"attempt": failure.number, "step": failure.last_step}
    return known | place | pick(failure, "what", "why", "fix", "where")


def _alarm(standing: ActiveAlarm) -> dict[str, Any]:
    """`where`: a path, or the UUID of a GPU."""
    alarm = pick(standing.alarm, "watch", "name", "subject", "answer", "what", "why", "fix", "where")
    return alarm | {"since_s": round(standing.since_s, 3)}


def _gpu(uuid: str, state: State) -> dict[str, Any]:
    """A GPU whose errors ended attempts."""
    ended = [attempt for failed, attempt in state.gpu_failures if failed == uuid]
    return {"uuid": uuid, "attempts_ended": ended, "left_out": uuid in state.left_out}


def _server(state: State) -> str | None:
    """Of a run that only serves: whether its server answers; null for a run that trains, and between attempts."""
    if state.live is None or not state.live.serves_only:
        return None
    return "starting" if state.live.ready_s is None else "ready"
