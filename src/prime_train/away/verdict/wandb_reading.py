"""Reads one run at W&B in a child with a deadline, because the client may wait for a server for hours.

The answer of a server is not trusted: a value of the wrong kind counts as absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean, median
from typing import Any, get_args

from prime_train.away.verdict.remote_reading import Problem, RemoteReading
from prime_train.core.errors import UserError
from prime_train.core.python_child import own_module
from prime_train.core.redaction import own_secrets, redact
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import read_answer

REQUEST_S = 15  # for one answer of the server
LIMIT_S = 90.0  # for the child: five requests, and the start of the client
_PATH = re.compile(r"[A-Za-z0-9][\w.-]{0,127}/[\w.-]{1,128}/[\w.-]{1,128}")
_GPU = re.compile(r"system\.gpu\.\d+\.gpu")
_NEWEST_SYSTEM_ROWS = 5  # one row each 15 s or more, so a moment between two kernels does not count as idle
_LATEST_S = 4e9  # the year 2096: a later time is no time


def check_path(path: str) -> str:
    """`path` if it names one run, ENTITY/PROJECT/ID; raises UserError otherwise."""
    found = path.strip().removeprefix("https://wandb.ai/").replace("/runs/", "/").rstrip("/")
    if _PATH.fullmatch(found):
        return found
    what, why = f"{path!r} is no run at W&B", "a run has an entity, a project and an id"
    raise UserError(what, "--wandb", why, "--wandb ENTITY/PROJECT/ID, as in the address of the run's page")


def read_run(
    path: str, observed_s: float, environment: Mapping[str, str], request_s: int = REQUEST_S, limit_s: float = LIMIT_S
) -> RemoteReading:
    """One reading of the run `path`, at `observed_s`. `environment`: of this process; its secrets reach no message."""
    command = own_module("prime_train.away.verdict.wandb_program")
    hidden = own_secrets(environment=environment)
    answer = read_answer("the W&B client", command, limit_s, {"path": path, "request_s": request_s})
    if isinstance(answer, NotKnown):
        slow = answer.reason.startswith("no answer")
        problem: Problem = "no_answer" if slow else "unreadable"
        return RemoteReading(observed_s, problem=problem, detail=redact(answer.reason, hidden))
    return parse(answer, observed_s, hidden)


def parse(document: Mapping[str, Any], observed_s: float, hidden: Sequence[str] = ()) -> RemoteReading:
    """The reading in a document of wandb_program.py. Pure."""
    if document.get("problem"):
        named = document["problem"]
        problem: Problem = named if named in get_args(Problem) else "unreadable"
        return RemoteReading(observed_s, problem=problem, detail=redact(str(document.get("detail", ""))[:300], hidden))
    if not isinstance(document.get("state"), str):
        return RemoteReading(observed_s, problem="unreadable", detail="the answer names no state")
    summary, config = _table(document.get("summary")), _table(document.get("config"))
    history = sorted(_read_history(document.get("history")))
    rows = [*history, *_read_history([summary])]
    system = [row for row in map(_table, _list(document.get("system"))) if _time(row.get("_timestamp")) is not None]
    steps = [step for step in (*(step for step, _ in rows), _step(document.get("history_step"))) if step is not None]
    newest, lines = max(steps, default=None), _step(document.get("history_lines"))
    last_step_s = max((time_s for _, time_s in rows), default=None)
    return RemoteReading(
        observed_s,
        state=document["state"].lower()[:40],
        heartbeat_s=_read_iso(document.get("heartbeat")),
        created_s=_read_iso(document.get("created")),
        step=newest,
        last_step_s=last_step_s,
        system_metrics_s=max((float(row["_timestamp"]) for row in system), default=None),
        gpu_busy=_read_gpu_busy(system, last_step_s),
        step_s=_read_step_s(history),
        log_every_steps=max(1, round(newest / lines)) if newest and lines else 1,  # so far is its last row from the end
        max_steps=_step(config.get("max_steps")) or None,
        exit_code=_step(summary.get("run/exit_code")),
        cause_class=str(summary.get("run/cause_class") or "")[:40],
    )


def _read_history(rows: object) -> list[tuple[int, float]]:
    """Step and time of each row that has both."""
    found = []
    for row in map(_table, _list(rows)):
        step, time_s = _step(row.get("_step")), _time(row.get("_timestamp"))
        if step is not None and time_s is not None:
            found.append((step, time_s))
    return found


def _read_step_s(history: Sequence[tuple[int, float]]) -> float | None:
    """The median time of a step, which a few checkpoints and evaluations do not change; None below three rows."""
    pairs = pairwise(history)
    steps_s = [(late_s - early_s) / (late - early) for (early, early_s), (late, late_s) in pairs if late > early]
    positive = [value for value in steps_s if value > 0]
    return median(positive) if len(positive) >= 2 else None


def _read_gpu_busy(system: Sequence[Mapping[str, Any]], last_step_s: float | None) -> float | None:
    """Mean utilisation of all GPUs over the newest rows, 0 to 1; None if there is no GPU.

    Rows from before the last step do not count where there are later ones: they do not show what it does since then.
    """
    ordered = sorted(system, key=lambda row: float(row["_timestamp"]))
    later = [row for row in ordered if last_step_s is not None and float(row["_timestamp"]) > last_step_s]
    newest = (later or ordered)[-_NEWEST_SYSTEM_ROWS:]
    values = [value for row in newest for name, value in row.items() if _GPU.fullmatch(str(name))]
    shares = [float(value) / 100 for value in values if _is_number(value) and 0 <= value <= 100]
    return fmean(shares) if shares else None


def _read_iso(value: object) -> float | None:
    """Seconds since the epoch; a time without a zone is UTC, as W&B's times are."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value[:40])
        return _time((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def _time(value: object) -> float | None:
    return float(value) if _is_number(value) and 0 < value < _LATEST_S else None  # type: ignore[arg-type, operator]


def _step(value: object) -> int | None:
    return int(value) if _is_number(value) and 0 <= value < 2**53 else None  # type: ignore[call-overload, operator]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
