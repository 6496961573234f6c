"""Understands what the metadata servers of AWS, GCP and Azure answer. Pure: no clock, no network.

Sources: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, .../rebalance-
recommendations.html; cloud.google.com/compute/docs/instances/spot;
learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

GCP_NOTICE_S = 30.0  # Google gives no time; the machine stops 30 s after the notice
AZURE_NOTICE_S = 30.0  # at least, also where NotBefore is empty because the event has begun


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
    return (
        PreemptionNotice("rebalance", 0.0, is_final=False)
        if status == 200 and "noticeTime" in _load(body)
        else "unreadable"
    )


def read_gcp_preempted(status: int, body: str) -> Read:
    """The answer of instance/preempted: TRUE or FALSE."""
    word = body.strip().upper()
    if status != 200 or word not in ("TRUE", "FALSE"):
        return "unreadable"
    return PreemptionNotice("preempt", GCP_NOTICE_S) if word == "TRUE" else None


_AZURE_FINAL = ("Preempt", "Terminate")
_AZURE_OTHER = ("Reboot", "Redeploy")


def read_azure_events(status: int, body: str, served_s: float, machine: str) -> Read:
    """The answer of scheduledevents. The events of a whole scale set arrive at each of its machines, so only those that
    name this `machine` count; with an unknown name ("") all do."""
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
        raw = json.loads(body)
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}
