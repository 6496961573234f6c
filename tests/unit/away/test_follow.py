from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from prime_train.away.sky.candidates import Candidate
from prime_train.away.sky.follow import JobProgress, JobView, as_lines, describe_job, read_progress, report
from prime_train.away.sky.queue import ManagedJob
from prime_train.away.sky.record import JobRecord
from prime_train.spec import ENDLESS_STEPS
from tests.golden import same_as_golden

PRICE = Candidate("aws", "H100", "h100-80gb", 8, 10.0, 30.0, 40.0)


def job(state: str, run_s: float = 0.0, recoveries: int = 0) -> ManagedJob:
    return ManagedJob(1, "a", state, recoveries, None, run_s, "AWS", "us-east-1", "8x H100")


def test_progress_is_that_of_the_last_lines() -> None:
    log = (
        "attempt 1 resumes from step 100\n"
        "10:00:00  step 1,150 of 10,000 (11 %), loss 3.1\n"
        "checkpoint of step 1100 complete: 12 MiB in 0.5 s\n"
        "10:01:00  step 1,200 of 10,000 (12 %), loss 3.0\n"
    )
    assert read_progress(log) == JobProgress(1200, 1100, 100)
    assert read_progress("nothing") == JobProgress(0, 0, None)


def test_a_command_without_a_known_last_step_is_followed() -> None:
    progress = read_progress("10:00:00  step 120, loss 3.1\ncheckpoint of step 100 complete: 12 MiB in 0.5 s\n")
    assert progress == JobProgress(120, 100, None)
    _, lines = report(JobView(state="RUNNING"), job("RUNNING", 3600), progress, (), ENDLESS_STEPS)
    assert "step 120; 1 h 00 min so far, price not known" in lines
    record = JobRecord("a", 1, "a.job.yaml", "bucket", ENDLESS_STEPS, ())
    document = describe_job(job("RUNNING"), progress, record)
    assert document["max_steps"] is None
    assert ("step", "120") in as_lines(document)


def test_a_recovery_between_two_polls_is_reported() -> None:
    view, _ = report(JobView(), job("RUNNING", 3600), JobProgress(57, 40), (PRICE,), 160)
    view, lines = report(view, job("RUNNING", 4000, 1), JobProgress(44, 40, 40), (PRICE,), 160)
    assert lines == (
        "preempted at step 57; 1 h 06 min and $11.11 so far",
        "recovered from step 40; 1 h 06 min and $11.11 so far",
    )
    assert view.recoveries == 1


def test_a_recovery_is_reported_once() -> None:
    view, lines = report(JobView(), job("RECOVERING"), JobProgress(), (PRICE,), 160)
    assert sum(line.startswith("preempted") for line in lines) == 1
    for state, recoveries in (("RECOVERING", 0), ("RECOVERING", 0), ("RUNNING", 1), ("RUNNING", 1)):
        view, lines = report(view, job(state, 1.0, recoveries), JobProgress(), (PRICE,), 160)
        assert not [line for line in lines if line.startswith("preempted")]


_STATES = st.sampled_from(["PENDING", "STARTING", "RUNNING", "RECOVERING", "CANCELLING", "SUCCEEDED", "FAILED", "NEW"])


@example([("RUNNING", 97528.97597161042, 0, 0), ("RUNNING", 259702.8074284294, 0, 0)])  # a sum of these rounds
@given(st.lists(st.tuples(_STATES, st.floats(0, 1e6), st.integers(0, 5), st.integers(0, 200)), max_size=12))
def test_cost_never_falls_and_a_repeated_reading_adds_no_line(readings: list[tuple[str, float, int, int]]) -> None:
    view = JobView()
    for state, run_s, recoveries, step in readings:
        before = view.billed_usd
        view, _ = report(view, job(state, run_s, recoveries), JobProgress(step), (PRICE,), 160)
        assert view.billed_usd >= before
        again, lines = report(view, job(state, run_s, recoveries), JobProgress(step), (PRICE,), 160)
        assert (again.billed_usd, lines) == (view.billed_usd, ())


def test_the_status_document() -> None:
    record = JobRecord("a", 1, "runs/a.job.yaml", "bucket-of-a", 160, (PRICE,))
    document = describe_job(job("RUNNING", 5400, 2), JobProgress(57, 40, 20), record)
    assert dict(as_lines(document))["cost so far"] == "$15.00"
    same_as_golden("status_managed_job.json", document)
