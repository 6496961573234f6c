from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.sky.queue import ENDED, find_job, parse_queue
from prime_train.core.errors import UserError

# As skypilot 0.14.1 prints a job: every field of ManagedJobRecord, most of them null.
RECORD: dict[str, Any] = {
    "job_id": 12,
    "task_id": 0,
    "job_name": "quickstart",
    "task_name": "quickstart",
    "job_duration": 5400.5,
    "status": "RUNNING",
    "schedule_state": "ALIVE",
    "resources": "1x[L40S:1][Spot]",
    "cloud": "Nebius",
    "region": "eu-north1",
    "zone": None,
    "recovery_count": 2,
    "failure_reason": None,
    "submitted_at": 1763900000.0,
    "accelerators": {"L40S": 1.0},
    "labels": None,
}


def test_a_record_of_sky_is_read() -> None:
    (job,) = parse_queue("Fetching...\n" + json.dumps([RECORD], indent=2))
    assert (job.id, job.name, job.state, job.recoveries) == (12, "quickstart", "RUNNING", 2)
    assert (job.cloud, job.region, job.accelerators, job.run_s) == ("Nebius", "eu-north1", "1x L40S", 5400.5)
    assert job.submitted_s == 1763900000.0
    assert not job.is_over


def test_the_states_that_end_a_job() -> None:
    for state in ENDED:
        (job,) = parse_queue(json.dumps([{**RECORD, "status": f"ManagedJobStatus.{state}"}]))
        assert job.is_over


def test_a_live_job_comes_before_a_newer_one_that_is_over() -> None:
    jobs = parse_queue(json.dumps([{**RECORD, "job_id": 3}, {**RECORD, "job_id": 9, "status": "CANCELLED"}]))
    assert [job.id for job in jobs] == [9, 3]
    found = find_job(jobs, "quickstart")
    assert found is not None
    assert found.id == 3
    assert find_job(jobs, "other") is None


@pytest.mark.parametrize("text", ["", "null", '{"a": 1}', "[", "[1, 2", "Traceback", "[" * 100_000])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no list of jobs"):
        parse_queue(text)


def test_an_empty_queue_has_no_job() -> None:
    assert parse_queue("[]\n") == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*RECORD, "x"]), inner),
    max_leaves=20,
)


@given(st.lists(_JSON))
def test_any_list_gives_jobs_of_printable_values(document: list[Any]) -> None:
    text = json.dumps(document)
    for job in parse_queue(text if text.startswith(("[{", "[]", "[\n")) else "[]"):
        assert job.run_s >= 0
        assert (job.name + job.failure + job.cloud).isprintable()
