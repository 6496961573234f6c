"""Turns the answers of the metadata servers of AWS, GCP and Azure into notices and alarms. Pure: no clock, no network.

Sources: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, .../rebalance-
recommendations.html; cloud.google.com/compute/docs/instances/spot;
learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from prime_train.core.outside import parse_json
from prime_train.supervise.watches.watch import Alarm, Answer

GCP_NOTICE_S = 30.0  # Google gives no time; the machine stops 30 s after the notice
AZURE_NOTICE_S = 30.0  # at least, also where NotBefore is empty because the event has begun
_AZURE_FINAL = ("Preempt", "Terminate")
_AZURE_OTHER = ("Reboot", "Redeploy")
TITLES = {"aws": "AWS", "gcp": "Google Cloud", "azure": "Azure"}
SILENT_S = 120.0  # without an answer that can be read, before a note
WITHDRAWN = 3  # looks without the notice in a row; Azure may withdraw an event, AWS a hint
_HINTS = {
    "rebalance": "takes such machines away soon",
    "reboot": "will restart this machine",
    "redeploy": "will move this machine, which loses its local disk",
}


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """The cloud takes this machine away (`is_final`), or reports that it may do so soon.

    `left_s`: seconds until then, counted from the answer by the server's own clock, because the clock of the machine
    may be wrong.
    """

    action: str  # "terminate", "stop", "hibernate", "preempt", "rebalance", "reboot", "redeploy"
    left_s: float
    is_final: bool = True


Read = PreemptionNotice | None | Literal["unreadable"]


def read_aws_action(status: int, body: str, served_s: float) -> Read:
    """The answer of spot/instance-action: 404 until there is a notice."""
    if status == 404:
        return None
    raw = _load(body)
    time_s = _iso_s(raw.get("time"))
    if status != 200 or time_s is None or raw.get("action") not in ("terminate", "stop", "hibernate"):
        return "unreadable"
    return PreemptionNotice(str(raw["action"]), max(0.0, time_s - served_s))


def read_aws_rebalance(status: int, body: str) -> Read:
    """The answer of events/recommendations/rebalance: the machine is more likely than others to be taken away."""
    if status == 404:
        return None
    is_read = status == 200 and "noticeTime" in _load(body)
    return PreemptionNotice("rebalance", 0.0, is_final=False) if is_read else "unreadable"


def read_gcp_preempted(status: int, body: str) -> Read:
    """The answer of instance/preempted: TRUE or FALSE."""
    word = body.strip().upper()
    if status != 200 or word not in ("TRUE", "FALSE"):
        return "unreadable"
    return PreemptionNotice("preempt", GCP_NOTICE_S) if word == "TRUE" else None


def read_azure_events(status: int, body: str, served_s: float, machine: str) -> Read:
    """The answer of scheduledevents.

    The events of a whole scale set arrive at each of its machines, so only those that name this `machine` count; with
    an unknown name ("") all do.
    """
    raw = _load(body)
    listed = raw.get("Events")
    if status != 200 or not isinstance(listed, list):
        return "unreadable"
    events = [event for event in listed if isinstance(event, dict) and _concerns(event, machine)]
    for kinds, is_final in ((_AZURE_FINAL, True), (_AZURE_OTHER, False)):
        chosen = [_azure_left_s(event, served_s) for event in events if event.get("EventType") in kinds]
        if chosen:
            action = next(str(event["EventType"]).lower() for event in events if event.get("EventType") in kinds)
            return PreemptionNotice(action, min(chosen), is_final)
    return None


def _concerns(event: dict[str, Any], machine: str) -> bool:
    resources = event.get("Resources")
    named = [str(name).lower() for name in resources] if isinstance(resources, list) else []
    done = event.get("EventStatus") == "Completed"
    return not done and (not machine or not named or machine.lower() in named)


def _azure_left_s(event: dict[str, Any], served_s: float) -> float:
    """Until NotBefore, which is empty for an event that has begun."""
    text = event.get("NotBefore")
    if not text or event.get("EventStatus") == "Started":
        return AZURE_NOTICE_S
    time_s = read_http_date(str(text))
    return AZURE_NOTICE_S if time_s is None else max(0.0, time_s - served_s)


def read_http_date(text: str) -> float | None:
    """Seconds since the epoch of "Mon, 19 Sep 2016 18:29:47 GMT"; None if it is no date."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _iso_s(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _load(body: str) -> dict[str, Any]:
    try:
        raw = parse_json(body)
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


@dataclass(frozen=True, slots=True)
class NoticeSample:
    """One look. `stamp_s` is time.monotonic(); `problem` is why there is no answer, else ""."""

    stamp_s: float
    notice: PreemptionNotice | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NoticeHistory:
    """What was seen so far. `deadline_s` is on the clock that stamps events; it never moves to a later time."""

    notice: PreemptionNotice | None = None
    deadline_s: float = 0.0
    clear_looks: int = 0
    answered_s: float | None = None  # the monotonic time of the last answer, or of the first sample
    problem: str = ""


def judge(
    memory: NoticeHistory,
    samples: Sequence[NoticeSample],
    cloud: str,
    now_s: float,
    at_s: float,
    answer: Literal["alert", "pause"],
) -> tuple[NoticeHistory, tuple[Alarm, ...]]:
    """The next memory, and what is wrong. `now_s` is the wall clock, `at_s` the monotonic one, at the same moment."""
    for sample in samples:
        memory = _remember(memory, sample, now_s, at_s)
    return memory, tuple(_list_alarms(memory, cloud, at_s, answer))


def _remember(memory: NoticeHistory, sample: NoticeSample, now_s: float, at_s: float) -> NoticeHistory:
    if sample.problem:
        answered_s = sample.stamp_s if memory.answered_s is None else memory.answered_s
        return replace(memory, answered_s=answered_s, problem=sample.problem)
    memory = replace(memory, answered_s=sample.stamp_s, problem="")
    notice = sample.notice
    if notice is None:
        clear_looks = memory.clear_looks + 1
        withdrawn = memory.notice is not None and clear_looks >= WITHDRAWN
        return replace(memory, clear_looks=clear_looks, notice=None if withdrawn else memory.notice)
    deadline_s = now_s - (at_s - sample.stamp_s) + notice.left_s
    if memory.notice is not None and memory.notice.is_final and notice.is_final:
        deadline_s = min(deadline_s, memory.deadline_s)
    return replace(memory, notice=notice, deadline_s=deadline_s, clear_looks=0)


def _list_alarms(memory: NoticeHistory, cloud: str, at_s: float, most: Literal["alert", "pause"]) -> Iterator[Alarm]:
    title, notice = TITLES[cloud], memory.notice
    if notice is not None and notice.is_final:
        when = time.strftime("%H:%M:%S", time.gmtime(memory.deadline_s))
        what = f"{title} takes this machine away at {when} UTC ({notice.action})"
        why = "a spot machine is cheap because its cloud may end it; a save that is not complete by then is lost"
        fix = "start the same command on another machine: it continues from the newest complete checkpoint"
        answer: Answer = "leave" if most == "pause" else "alert"
        about = ("preemption", "preempted", "this machine", answer, "signal", what, why, fix)
        yield Alarm(*about, deadline_s=memory.deadline_s)
    elif notice is not None:
        what = f"{title} {_HINTS.get(notice.action, notice.action)}"
        why = "the run continues until a notice comes"
        fix = "nothing has to be done; more frequent checkpoints lose less"
        yield Alarm("preemption", "preemption_near", "this machine", "alert", "signal", what, why, fix)
    silent_s = at_s - memory.answered_s if memory.answered_s is not None else 0.0
    if memory.problem and silent_s >= SILENT_S:
        what = f"notices of {title} cannot be read: {memory.problem}"
        why, fix = "the machine may be taken away without a save before", "allow the metadata server in this container"
        yield Alarm("preemption", "preemption_not_watched", "this machine", "note", "unknown", what, why, fix)
