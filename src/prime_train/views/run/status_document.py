"""Makes the one JSON document of a run, and renders it as text for `status` and the live screen. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prime_train.core.machines import find_machine
from prime_train.core.units import counted, format_count, format_seconds
from prime_train.events.record import describe
from prime_train.supervise.core.fold_instability import describe_proposal
from prime_train.supervise.core.gpu_stages import SUSPICIONS, find_stage
from prime_train.supervise.core.state import ActiveAlarm, AttemptState, State, TaskScore
from prime_train.views.run import measures
from prime_train.views.run.status import Status
from prime_train.views.text import date, fixed, pick, rounded, sanitize

OVERVIEW = ("RUN", "STATE", "STEP", "LOSS", "HELD-OUT", "RESTARTS", "TRAINER", "LAST ACTIVITY")
OVERVIEW_LEAST_NEEDED = (6, 4, 5, 3)  # columns that a narrow terminal leaves out
_OVER = ("stopped", "finished", "failed")
_ALIVE = {True: "alive", False: "gone", None: "on another machine"}
_ENVIRONMENTS_SHOWN = 3
Document = Mapping[str, Any]  # that of `status_document`


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
        "gpus": [_gpu(uuid, state) for uuid in _list_gpus(state)],
        "micro_batch": state.micro_batch,
        "settings": _settings(state),
        "proposal": describe_open_proposal(state),
        "disk": {"free_gib": rounded(status.free_gib, 1)},
        "checkpoints": {"newest_complete": status.newest_complete, "saving": state.saving_step},
        "is_endless": state.is_endless,
        "left_s": rounded(status.left_s, 1),
        "validations": [
            {"step": found.step, "loss": rounded(found.loss, 6)}
            for found in (state.first_validation, state.last_validation)
            if found
        ],
        "not_finite": _not_finite(state),
        "last_event_age_s": rounded(status.last_event_age_s, 1),
        "server": _server(state),
        "paused": _paused(state),
        "place": status.place or None,
        "events_damage": describe(status.damage) or None,
    }


def _settings(state: State) -> dict[str, int | bool | None]:
    """The newest change of settings, 0 for none, and the newest one in force with its first step.

    `ended_before`: the run has finished, and the newest change was never in force.
    """
    in_force, step = state.settings_in_force
    newest, ended = state.settings_version, had_no_step(state.settings_version, state)
    return {"version": newest, "in_force": in_force, "from_step": step if in_force else None, "ended_before": ended}


def had_no_step(version: int, state: State) -> bool:
    """Whether the run has finished before a change of settings was in force."""
    return state.state == "finished" and version > max((one for one, _ in state.settings_applied), default=0)


def describe_open_proposal(state: State) -> dict[str, Any] | None:
    """The change that waits for a person, with its reason; null without one."""
    found = state.instability
    if found is None or not state.is_proposed:
        return None
    return pick(found, "number", "step", "what", "values", "go_back_to") | {"change": describe_proposal(found)}


def _not_finite(state: State) -> dict[str, str]:
    """The name of each number that is not finite, with "nan", "inf" or "-inf"."""
    numbers = pick(state, "loss", "reward", "tokens_per_s")
    return {name: str(value) for name, value in numbers.items() if value is not None and not math.isfinite(value)}


def _task_score(score: TaskScore) -> dict[str, Any]:
    """`reward` is that of the latest evaluation on held-out tasks."""
    rewards = {"first_reward": rounded(score.first_reward, 6), "reward": rounded(score.reward, 6)}
    return pick(score, "environment", "first_step", "step") | rewards


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


def _list_gpus(state: State) -> list[str]:
    tested = (test.gpu for test in state.gpu_tests)
    suspected = (active.alarm.where for active in state.alarms if active.alarm.name in SUSPICIONS)
    return sorted({*state.left_out, *tested, *suspected, *(uuid for uuid, _ in state.gpu_failures)} - {""})


def _gpu(uuid: str, state: State) -> dict[str, Any]:
    """A GPU whose errors ended attempts, that is suspect, or that was drained or tested."""
    test = next((pick(test, "passed", "what") for test in state.gpu_tests if test.gpu == uuid), None)
    ended = [attempt for failed, attempt in state.gpu_failures if failed == uuid]
    stage = find_stage(state, uuid)
    return {"uuid": uuid, "attempts_ended": ended, "left_out": uuid in state.left_out, "test": test, "stage": stage}


def _paused(state: State) -> dict[str, Any] | None:
    """Since when the run is paused, or is about to be, and by whom; null for a run that goes on."""
    halt = state.halt
    return {"since_s": round(halt.since_s, 3), "by": halt.by} if halt is not None and state.is_paused else None


def _server(state: State) -> str | None:
    """Of a run that only serves: whether its server answers; null for a run that trains, and between attempts."""
    if state.live is None or not state.live.serves_only:
        return None
    return "starting" if state.live.ready_s is None else "ready"


def as_lines(document: Document) -> list[tuple[str, str]]:
    """Label and text of each line of `status RUN`; unknown values are left out."""
    failure, alarms, supervisor = document["cause"], document["alarms"], document["supervisor"]
    lines = [("state", _state(document)), ("step", reached(document)), *_results(document)]
    if document["last_progress_s"] is not None:
        lines.append(("last activity", f"{format_seconds(document['last_progress_s'])} ago"))
    if document["last_event"]:
        lines.append(("last event", document["last_event"]))
    lines.append(("attempt", _attempts(document)))
    if failure is not None:
        lines.append(("last failure", f"attempt {failure['attempt']} at step {failure['step']}: {failure['what']}"))
    lines.extend(("alarm", alarm["what"]) for alarm in alarms if alarm["answer"] != "note")
    if notes := sum(alarm["answer"] == "note" for alarm in alarms):
        lines.append(("notes", f"{counted(notes, 'note')} of the watches: prime-train report {document['run']}"))
    if (settings := document["settings"])["version"]:
        since = f" from step {settings['from_step']:,} on" if settings["in_force"] else ""
        ended = "; the run ended before the newest one" if settings["ended_before"] else ""
        lines.append(("settings", f"version {settings['version']}; in force: {settings['in_force']}{since}{ended}"))
    if (proposal := document["proposal"]) is not None:
        lines.append(("unstable", proposal["what"]))
        accept = f"to make it: prime-train set {document['run']} --accept"
        lines.append(("proposed", f"{proposal['change']}; {accept}"))
    if document["micro_batch"] is not None:
        lines.append(("micro-batch", f"{document['micro_batch']}, reduced because memory ran out"))
    drained, left_out = _list_left_out(document)
    if drained:
        lines.append(("drained", f"{drained}; to return it: prime-train gpu return {document['run']} {drained}"))
    if left_out:
        lines.append(("left out", f"{left_out}, if enough other GPUs remain"))
    lines.extend(("GPU", f"{gpu['uuid']} is suspect") for gpu in document["gpus"] if gpu["stage"] == "suspect")
    tested = ((gpu["uuid"], gpu["test"]["passed"]) for gpu in document["gpus"] if gpu["test"])
    lines.extend(("GPU test", f"{uuid} {'passed' if passed else 'failed'}") for uuid, passed in tested)
    if supervisor["alive"] and supervisor["pid"]:
        held = f", stopped by a signal; to continue: kill -CONT {supervisor['pid']}"
        lines.append(("supervisor", f"pid {supervisor['pid']}{held if supervisor['stopped_by_signal'] else ''}"))
    lines.extend((child["role"], f"pid {child['pid']}, {_ALIVE[child['alive']]}") for child in document["children"])
    newest = document["checkpoints"]["newest_complete"]
    lines.append(("checkpoint", "none complete" if newest is None else f"step {newest:,} is the newest complete one"))
    if document["disk"]["free_gib"] is not None:
        lines.append(("disk", f"{document['disk']['free_gib']:.1f} GiB free"))
    if document["events_damage"]:
        lines.append(("events", f"some cannot be used: {document['events_damage']}"))
    return [*lines, ("directory", document["path"])]


def _list_left_out(document: Document) -> tuple[str, str]:
    """The machines and the GPUs that the run does not use."""
    names = [gpu["uuid"] for gpu in document["gpus"] if gpu["left_out"]]
    machines = [name for name in names if find_machine(name) >= 0]
    return " ".join(machines), ", ".join(name for name in names if name not in machines)


def _state(document: Document) -> str:
    state = document["state"]
    if state in ("queued", "starting") and document["place"]:
        return f"{state}: {document['place']}"
    if state == "died":
        gone = "its supervisor is gone" if document["supervisor"]["pid"] else "no supervisor opened it"
        return f"died: {gone}; run the same command again to continue from the newest complete checkpoint"
    if state == "paused" and document["paused"]:
        since = date(document["paused"]["since_s"])
        return f"paused since {since} by {document['paused']['by']}; to continue: prime-train resume {document['run']}"
    if state in _OVER:
        reason = f": {document['reason']}" if document["reason"] else ""
        return f"{state}{reason} (exit code {document['exit_code']})"
    return f"{state}, {document['phase']}" if document["phase"] else state


def _results(document: Document) -> list[tuple[str, str]]:
    lines = [("loss", text)] if (text := figure(document, "loss", 4)) else []
    if document["validations"]:
        first, last = document["validations"]
        lines.append(("held-out loss", f"{fixed(first['loss'], 4)} -> {fixed(last['loss'], 4)} (step {last['step']})"))
    if text := figure(document, "reward", 3):
        lines.append(("reward", f"{text}, mean over the rollouts of the latest step"))
    lines.extend(("held-out tasks", _score(score)) for score in document["tasks"])
    lines.extend(("evaluation", text) for text in measures.describe(document["measured"]))
    if document["rollouts_failed"]:
        lines.append(("rollouts", f"{counted(document['rollouts_failed'], 'rollout')} failed in an environment"))
    if document["tokens_per_s"] is not None:
        lines.append(("speed", _speed(document)))
    return lines


def _score(score: Document) -> str:
    begun = "" if score["first_step"] == score["step"] else f"{fixed(score['first_reward'], 3)} -> "
    return f"{score['environment']}: mean reward {begun}{fixed(score['reward'], 3)} (step {score['step']})"


def _speed(document: Document) -> str:
    return f"{format_count(round(document['tokens_per_s']))} {document['unit']}/s"


def figure(document: Document, name: str, digits: int) -> str:
    """A number of the document, "nan" or "inf" where it is not finite; "" where it is not known."""
    value = document[name]
    return document["not_finite"].get(name, "") if value is None else f"{value:.{digits}f}"


def reached(document: Document) -> str:
    """ "1,500 of 3,000"; "1,500" for an endless run."""
    return f"{document['step']:,}" + ("" if document["is_endless"] else f" of {document['max_steps']:,}")


def _attempts(document: Document) -> str:
    return f"{document['attempt']}, {counted(document['restarts'], 'restart')}"


def as_rows(documents: Sequence[Document]) -> list[tuple[str, ...]]:
    """One row per run under the header OVERVIEW."""
    return [
        (
            document["run"],
            document["state"],
            reached(document).replace(" of ", "/"),
            figure(document, "loss", 3),
            fixed(document["validations"][-1]["loss"], 3) if document["validations"] else "",
            str(document["restarts"]),
            next((f"pid {child['pid']}" for child in document["children"] if child["alive"]), ""),
            "" if document["last_progress_s"] is None else f"{format_seconds(document['last_progress_s'])} ago",
        )
        for document in documents
    ]


# --- the live screen and its plain lines ------------------------------------------------------------


def progress(document: Document, *figures: str) -> str:
    """Example: "step 150 of 300 (50%), loss 4.2017, 3.9 k tokens/s, 45 s left"."""
    share = "" if document["is_endless"] else f" ({done_part(document):.0%})"
    left = [] if document["left_s"] is None else [f"{format_seconds(document['left_s'])} left"]
    return ", ".join([f"step {reached(document)}{share}", *figures, *left])


def done_part(document: Document) -> float:
    """The part of the run that is done, 0 to 1."""
    return float(document["step"] / document["max_steps"]) if document["max_steps"] else 0.0


def numbers(document: Document) -> list[str]:
    """Reward, loss, held-out results and speed; values that are not known are left out."""
    parts = [f"reward {text}"] if (text := figure(document, "reward", 3)) else []
    tasks = document["tasks"][:_ENVIRONMENTS_SHOWN]
    parts += [f"{score['environment']} {fixed(score['reward'], 3)}" for score in tasks]
    if text := figure(document, "loss", 4):
        parts.append(f"loss {text}")
    if document["validations"]:
        parts.append(f"held-out {fixed(document['validations'][-1]['loss'], 4)}")
    return [*parts, _speed(document)] if document["tokens_per_s"] is not None else parts


def troubles(document: Document) -> str:
    """Example: "attempt 2, 1 restart; attempt 1 failed: killed by signal 9"; empty before a failure."""
    failed = document["cause"]
    if failed is None:
        return ""
    return f"attempt {_attempts(document)}; attempt {failed['attempt']} failed: {sanitize(failed['what'])}"
