"""The answers of three clouds, as their pages show them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.watches.preemption import judge
from prime_train.supervise.watches.preemption.judge import PreemptionNotice

SERVED_S = 1_790_000_000.0  # 2026-09-21T14:13:20Z
MACHINE = "trainer_3"


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (404, "not found", None),
        (200, '{"action": "terminate", "time": "2026-09-21T14:15:20Z"}', PreemptionNotice("terminate", 120.0)),
        (200, '{"action": "stop", "time": "2026-09-21T14:13:00Z"}', PreemptionNotice("stop", 0.0)),
        (200, '{"action": "dance", "time": "2026-09-21T14:15:20Z"}', "unreadable"),
        (200, '{"action": "stop", "time": "soon"}', "unreadable"),
        (200, "<html>", "unreadable"),
        (200, "[]", "unreadable"),
        (200, "[" * 100_000, "unreadable"),
    ],
)
def test_aws(status: int, body: str, found: object) -> None:
    assert judge.read_aws_action(status, body, SERVED_S) == found


def test_aws_recommends_a_move() -> None:
    assert judge.read_aws_rebalance(404, "") is None
    found = judge.read_aws_rebalance(200, '{"noticeTime": "2026-09-21T14:15:20Z"}')
    assert found == PreemptionNotice("rebalance", 0.0, is_final=False)


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, "TRUE", PreemptionNotice("preempt", 30.0)),
        (200, "FALSE\n", None),
        (200, "maybe", "unreadable"),
        (503, "TRUE", "unreadable"),
    ],
)
def test_gcp(status: int, body: str, found: object) -> None:
    assert judge.read_gcp_preempted(status, body) == found


def azure(kind: str, before: str = "Mon, 21 Sep 2026 14:14:00 GMT", *machines: str, status: str = "Scheduled") -> str:
    event = {"EventType": kind, "Resources": [*machines] or [MACHINE], "EventStatus": status, "NotBefore": before}
    return json.dumps({"DocumentIncarnation": 2, "Events": [event]})


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"DocumentIncarnation": 0, "Events": []}', None),
        (azure("Preempt"), PreemptionNotice("preempt", 40.0)),
        (azure("Terminate"), PreemptionNotice("terminate", 40.0)),
        (azure("Preempt", "", status="Started"), PreemptionNotice("preempt", 30.0)),
        (azure("Preempt", "no date"), PreemptionNotice("preempt", 30.0)),
        (azure("Preempt", "Mon, 21 Sep 2026 14:14:00 GMT", "another_vm"), None),
        (
            azure("Preempt", "Mon, 21 Sep 2026 14:14:00 GMT", "another_vm", "TRAINER_3"),
            PreemptionNotice("preempt", 40.0),
        ),
        (azure("Preempt", status="Completed"), None),
        (azure("Freeze"), None),
        (azure("Reboot"), PreemptionNotice("reboot", 40.0, is_final=False)),
        ("{}", "unreadable"),
    ],
)
def test_azure(body: str, found: object) -> None:
    assert judge.read_azure_events(200, body, SERVED_S, MACHINE) == found


def test_a_final_event_of_azure_comes_before_others() -> None:
    events = [json.loads(azure(kind))["Events"][0] for kind in ("Redeploy", "Preempt")]
    found = judge.read_azure_events(200, json.dumps({"Events": events}), SERVED_S, MACHINE)
    assert found == PreemptionNotice("preempt", 40.0)


_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
)


@given(
    st.text(max_size=60) | st.builds(json.dumps, st.dictionaries(st.sampled_from(["action", "time", "Events"]), _json))
)
def test_no_answer_raises_and_no_time_is_negative(body: str) -> None:
    found = [
        judge.read_aws_action(200, body, SERVED_S),
        judge.read_aws_rebalance(200, body),
        judge.read_gcp_preempted(200, body),
        judge.read_azure_events(200, body, SERVED_S, MACHINE),
    ]
    assert all(notice.left_s >= 0 for notice in found if isinstance(notice, PreemptionNotice))
