"""Turns the answers of a metadata server into alarms. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prime_train.supervise.watches.preemption.notices import PreemptionNotice
from prime_train.supervise.watches.watch import Alarm, Answer

TITLES = {"aws": "AWS", "gcp": "Google Cloud", "azure": "Azure"}
SILENT_S = 120.0  # without an answer that can be read, before a note
WITHDRAWN = 3  # looks without the notice in a row; Azure may withdraw an event, AWS a hint
_HINTS = {
    "rebalance": "takes such machines away soon",
    "reboot": "will restart this machine",
    "redeploy": "will move this machine, which loses its local disk",
}


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
        yield Alarm(
            *("preemption", "preempted", "this machine", answer, "signal", what, why, fix), deadline_s=memory.deadline_s
        )
    elif notice is not None:
        what = f"{title} {_HINTS.get(notice.action, notice.action)}"
        why, fix = (
            "the run continues until a notice comes",
            "nothing has to be done; more frequent checkpoints lose less",
        )
        yield Alarm("preemption", "preemption_near", "this machine", "alert", "signal", what, why, fix)
    silent_s = at_s - memory.answered_s if memory.answered_s is not None else 0.0
    if memory.problem and silent_s >= SILENT_S:
        what = f"notices of {title} cannot be read: {memory.problem}"
        why, fix = "the machine may be taken away without a save before", "allow the metadata server in this container"
        yield Alarm("preemption", "preemption_not_watched", "this machine", "note", "unknown", what, why, fix)
