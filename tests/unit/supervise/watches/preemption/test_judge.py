"""Samples become alarms: a deadline that never moves back, hints, and a server that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.watches.preemption.judge import (
    SILENT_S,
    WITHDRAWN,
    NoticeHistory,
    NoticeSample,
    PreemptionNotice,
    judge,
)
from prime_train.supervise.watches.watch import Alarm

NOW_S = 1_790_000_000.0
FIRST = NoticeHistory()


def look(
    samples: Sequence[NoticeSample],
    memory: NoticeHistory = FIRST,
    at_s: float = 100.0,
    answer: Literal["alert", "pause"] = "pause",
) -> tuple[NoticeHistory, tuple[Alarm, ...]]:
    return judge(memory, samples, "aws", NOW_S + at_s, at_s, answer)


def test_no_notice_is_no_alarm() -> None:
    assert look([NoticeSample(90.0), NoticeSample(95.0)])[1] == ()


def test_a_notice_asks_to_leave_and_counts_from_its_sample() -> None:
    (alarm,) = look([NoticeSample(98.0, PreemptionNotice("terminate", 120.0))])[1]
    assert (alarm.name, alarm.answer, alarm.deadline_s) == ("preempted", "leave", NOW_S + 98.0 + 120.0)
    assert alarm.what == "AWS takes this machine away at 14:16:58 UTC (terminate)"
    (alarm,) = look([NoticeSample(98.0, PreemptionNotice("terminate", 120.0))], answer="alert")[1]
    assert alarm.answer == "alert"


def test_a_hint_is_an_alert() -> None:
    (alarm,) = look([NoticeSample(98.0, PreemptionNotice("rebalance", 0.0, is_final=False))])[1]
    assert (alarm.name, alarm.answer) == ("preemption_near", "alert")


def test_a_notice_stands_until_it_is_withdrawn() -> None:
    memory, _ = look([NoticeSample(10.0, PreemptionNotice("preempt", 30.0))])
    for _ in range(WITHDRAWN - 1):
        memory, alarms = look([NoticeSample(11.0)], memory)
        assert [alarm.name for alarm in alarms] == ["preempted"]
    assert look([NoticeSample(12.0)], memory)[1] == ()


def test_a_server_that_cannot_be_read_is_noted_after_a_while() -> None:
    memory, alarms = look([NoticeSample(10.0, problem="it answers with status 403")], at_s=10.0)
    assert alarms == ()
    memory, alarms = look([NoticeSample(130.0, problem="it answers with status 403")], memory, at_s=10.0 + SILENT_S)
    assert [(alarm.name, alarm.answer) for alarm in alarms] == [("preemption_not_watched", "note")]
    assert "status 403" in alarms[0].what
    assert look([NoticeSample(131.0)], memory, at_s=131.0)[1] == ()


@given(st.lists(st.floats(0, 300), min_size=1, max_size=6))
def test_the_deadline_never_moves_to_a_later_time(left: list[float]) -> None:
    """Google counts 30 s from each answer, so later answers would move it."""
    memory, before_s = NoticeHistory(), float("inf")
    for number, left_s in enumerate(left):
        memory, (alarm,) = look(
            [NoticeSample(10.0 * number, PreemptionNotice("preempt", left_s))], memory, at_s=10.0 * number
        )
        assert alarm.deadline_s <= before_s
        before_s = alarm.deadline_s
