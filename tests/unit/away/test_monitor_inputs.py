from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.monitor.decide import MonitoredJob
from prime_train.away.monitor.poll import RunStatus, parse_queue, parse_status

# One record as `sky jobs queue --output json` of skypilot 0.14.1 prints it, with the fields that matter.
RECORD: dict[str, Any] = {
    "job_id": 3,
    "task_id": 0,
    "job_name": "demo",
    "status": "RUNNING",
    "recovery_count": 2,
    "submitted_at": 1.0,
    "pool": None,
}


def queue(*changes: dict[str, Any]) -> str:
    return json.dumps([RECORD | change for change in changes])


def test_the_document_of_status() -> None:
    text = json.dumps({"version": 1, "verdict": "stalled", "why": "no step", "resumable": True, "step": 12})
    assert parse_status(text) == RunStatus("stalled", "no step", True, 12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"verdict": "dead"}, RunStatus("unknown", "the status has no verdict", False, None)),
        ({"resumable": 1}, RunStatus("crashed", "w", False, 5)),
        ({"resumable": "true"}, RunStatus("crashed", "w", False, 5)),
        ({"step": -1}, RunStatus("crashed", "w", True, None)),
        ({"step": True}, RunStatus("crashed", "w", True, None)),
        ({"step": 10**30}, RunStatus("crashed", "w", True, None)),
        ({"why": None}, RunStatus("crashed", "", True, 5)),
        ({"why": "\x1b[2J" + "a" * 999}, RunStatus("crashed", "\ufffd[2J" + "a" * 296, True, 5)),
    ],
)
def test_a_field_that_is_not_understood(changes: dict[str, Any], expected: RunStatus) -> None:
    document = {"verdict": "crashed", "why": "w", "resumable": True, "step": 5} | changes
    assert parse_status(json.dumps(document)) == expected


@pytest.mark.parametrize("text", ["", "[]", "null", "Traceback", "[" * 100_000])
def test_no_document(text: str) -> None:
    assert parse_status(text).verdict == "unknown"


def test_the_queue_of_one_run() -> None:
    text = queue({}, {"job_id": 4, "job_name": "other"}, {"job_id": 5, "status": "FAILED", "recovery_count": None})
    assert parse_queue(text, "demo") == (MonitoredJob(3, "RUNNING", 2), MonitoredJob(5, "FAILED", 0))


def test_lines_before_the_queue_are_skipped() -> None:
    assert parse_queue(f"A newer SkyPilot [0.15] is out.\n{queue({})}", "demo") == (MonitoredJob(3, "RUNNING", 2),)
    assert parse_queue("A newer SkyPilot is out.\n[]", "demo") == ()
    assert parse_queue("no list\n[1, 2", "demo") is None


def test_a_job_of_several_tasks_is_live_while_one_is() -> None:
    text = queue({"status": "SUCCEEDED"}, {"task_id": 1, "status": "RUNNING"}, {"task_id": 2, "status": "FAILED"})
    assert parse_queue(text, "demo") == (MonitoredJob(3, "RUNNING", 2),)


@pytest.mark.parametrize(
    ("run", "job", "is_same"),
    [
        ("my_run.v2", "my-run-v2", True),
        ("Demo", "demo", True),
        ("demo", "demo2", False),
        ("a" * 60, "a" * 48, True),
        ("a" * 20, "a" * 10, False),
        ("demo", None, False),
    ],
)
def test_the_name_of_a_job_may_differ_in_what_skypilot_refuses(run: str, job: str | None, is_same: bool) -> None:
    assert bool(parse_queue(queue({"job_name": job}), run)) is is_same


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", queue({"status": None}), queue({"job_id": None}), queue({"job_id": True})],
)
def test_a_queue_that_is_not_understood_excludes_no_job(text: str) -> None:
    assert parse_queue(text, "demo") is None


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_read_or_not_known(text: str) -> None:
    assert isinstance(parse_status(text), RunStatus)
    assert parse_queue(text, "demo") in (None, ())
