"""Whole histories of polls, as data, with the decision that each must lead to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.monitor.decide import (
    BegunResume,
    MonitorLimits,
    Poll,
    PollReading,
    count_fruitless,
    count_fruitless_resumes,
    decide,
)
from prime_train.away.monitor.decide import (
    MonitoredJob as Job,
)
from prime_train.away.monitor.decide import (
    PollHistory as History,
)
from prime_train.spec import Restart

NOW_S = 1e9
HOUR_S = 3600.0
LIMITS = MonitorLimits(interval_steps=100)


def reading(verdict: Any = "crashed", step: int | None = 250, jobs: Any = (), **changes: Any) -> PollReading:
    return PollReading(NOW_S, verdict, "evidence", True, step, jobs)._replace(**changes)


def seen(ago_s: float, verdict: str = "crashed", step: int | None = 250, job: int | None = None, lost: int = 0) -> Poll:
    return Poll(NOW_S - ago_s, verdict, step, job, lost)


def made(number: int, ago_s: float, step: int = 250) -> BegunResume:
    return BegunResume(number, NOW_S - ago_s, step)


AGREED = (seen(900),)
RUNNING = (Job(3, "RUNNING", 0),)
FAILED = (Job(3, "FAILED", 0),)

HISTORIES: dict[str, tuple[PollReading, History, str, str]] = {
    "two polls agree, no job": (reading(), History(AGREED), "resume", "crashed at step 250"),
    "the first poll": (reading(), History(), "wait", "must agree"),
    "the other poll was a minute ago": (reading(), History((seen(60),)), "wait", "must agree"),
    "it lived in between": (reading(), History((seen(1800), seen(900, "alive"))), "wait", "must agree"),
    "it took a step in between": (reading(step=251), History(AGREED), "wait", "must agree"),
    "a job was live at the other poll": (reading(), History((seen(900, job=3),)), "wait", "must agree"),
    "the ended job is the second witness": (reading(jobs=FAILED), History(), "resume", "crashed"),
    "the controller failed": (reading(jobs=(Job(3, "FAILED_CONTROLLER", 1),)), History(), "resume", "crashed"),
    "no capacity": (reading(jobs=(Job(3, "FAILED_NO_RESOURCE", 1),)), History(), "resume", "crashed"),
    "an older job failed, the newer one lives": (reading(jobs=(*FAILED, Job(4, "PENDING", 0))), History(), "wait", "4"),
    "an older job lives, a newer failed": (reading(jobs=(Job(2, "RECOVERING", 9), *FAILED)), History(), "wait", "2"),
    "a state of a later SkyPilot": (reading(jobs=(Job(3, "HIBERNATING", 0),)), History(AGREED), "wait", "HIBERNATING"),
    "every live state": (reading(jobs=(Job(3, "CANCELLING", 0),)), History(AGREED), "wait", "CANCELLING"),
    "alive without a job": (reading("alive"), History(AGREED), "wait", "alive"),
    "slow without a job": (reading("slow", jobs=FAILED), History(AGREED), "wait", "slow"),
    "not known": (reading("unknown", jobs=FAILED), History(AGREED), "wait", "not known"),
    "no queue": (reading(jobs=None), History(AGREED), "wait", "cannot be read"),
    "no queue, and finished": (reading("finished", jobs=None), History(AGREED), "wait", "cannot be read"),
    "not resumable": (reading(resumable=False), History(AGREED), "give-up", "not resumable"),
    "finished": (reading("finished", resumable=False), History(AGREED), "report", "finished"),
    "the job succeeded before W&B knows": (reading("alive", jobs=(Job(3, "SUCCEEDED", 0),)), History(), "report", "3"),
    "a person cancelled it": (reading(jobs=(Job(3, "CANCELLED", 0),)), History(AGREED), "report", "cancelled"),
    "the set-up failed": (reading(jobs=(Job(3, "FAILED_SETUP", 0),)), History(AGREED), "give-up", "same way"),
    "just resumed": (reading(), History(AGREED, (made(1, 900),)), "wait", "is due in 45 min"),
    "resumed an hour ago": (reading(), History(AGREED, (made(1, HOUR_S),)), "resume", "crashed"),
    "a second one waits longer": (
        reading(), History(AGREED, (made(1, 5 * HOUR_S), made(2, 1.5 * HOUR_S))), "wait", "is due in 30 min",
    ),
    "three without a checkpoint": (
        reading(), History(AGREED, (made(1, 40 * HOUR_S), made(2, 30 * HOUR_S), made(3, 20 * HOUR_S))), "give-up", "3",
    ),
    "three, the last one brought a checkpoint": (
        reading(step=310),
        History((seen(900, step=310),), (made(1, 40 * HOUR_S), made(2, 30 * HOUR_S), made(3, 20 * HOUR_S))),
        "resume", "310",
    ),
    "three, more steps but no checkpoint": (
        reading(step=299),
        History((seen(900, step=299),), (made(1, 40 * HOUR_S), made(2, 30 * HOUR_S), made(3, 20 * HOUR_S))),
        "give-up", "3 resumes",
    ),
    "W&B forgot the step": (
        reading(step=None),
        History((seen(900, step=None),), (made(1, 40 * HOUR_S), made(2, 30 * HOUR_S), made(3, 20 * HOUR_S))),
        "give-up", "3 resumes",
    ),
    "given up before": (reading(), History(AGREED, (), "no credit"), "report", "no credit"),
    "given up before, started by hand": (reading("alive", jobs=RUNNING), History((), (), "no credit"), "wait", "alive"),
    "stalled, but the job runs": (reading("stalled", jobs=RUNNING), History(AGREED), "report", "but job 3 is RUNNING"),
    "crashed at W&B, training goes on": (reading("crashed", jobs=RUNNING), History(AGREED), "report", "RUNNING"),
    "hung and paid for seven hours": (
        reading("stalled", jobs=RUNNING),
        History(tuple(seen(hours * HOUR_S, "stalled", job=3) for hours in range(7, 0, -1))), "give-up", "7 h",
    ),
    "hung for seven hours, with a sign of life": (
        reading("stalled", jobs=RUNNING),
        History((*(seen(h * HOUR_S, "stalled", job=3) for h in (7, 6, 5)), seen(4 * HOUR_S, "alive", job=3))),
        "report", "RUNNING",
    ),
    "W&B is silent for seven hours": (
        reading("unknown", None, RUNNING),
        History(tuple(seen(hours * HOUR_S, "unknown", None, job=3) for hours in range(7, 0, -1))), "wait", "RUNNING",
    ),
    "ten machines lost without a checkpoint": (
        reading("alive", 260, (Job(3, "RECOVERING", 10),)), History((seen(2 * HOUR_S, "alive", 210, 3, 0),)),
        "give-up", "10 machines",
    ),
    "ten machines lost with one": (
        reading("alive", 310, (Job(3, "RECOVERING", 10),)), History((seen(2 * HOUR_S, "alive", 210, 3, 0),)),
        "wait", "RECOVERING",
    ),
    "nine machines lost": (
        reading("alive", 260, (Job(3, "RUNNING", 9),)), History((seen(2 * HOUR_S, "alive", 210, 3, 0),)),
        "wait", "RUNNING",
    ),
    "ten machines lost while W&B is out of reach": (
        reading("unknown", None, (Job(3, "RUNNING", 12),)), History((seen(2 * HOUR_S, "alive", 210, 3, 0),)),
        "wait", "RUNNING",
    ),
    "ten machines lost within the lag of W&B": (
        reading("alive", 210, (Job(3, "RUNNING", 10),)), History((seen(1800, "alive", 210, 3, 0),)), "wait", "RUNNING",
    ),
    "machines that an earlier job lost": (
        reading("alive", 210, (Job(4, "RUNNING", 0),)), History((seen(2 * HOUR_S, "alive", 210, 3, 30),)),
        "wait", "RUNNING",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_leads_to_its_decision(name: str) -> None:
    now, history, action, words = HISTORIES[name]
    decision = decide(now, history, LIMITS)
    assert decision.action == action, decision
    assert words in decision.why, decision
    assert decision.fix or decision.action in ("resume", "wait") or decision.closes


def test_only_what_is_over_closes_the_issue() -> None:
    closing = {name for name, (now, history, *_) in HISTORIES.items() if decide(now, history, LIMITS).closes}
    assert closing == {"finished", "the job succeeded before W&B knows"}


def test_only_a_live_job_is_cancelled() -> None:
    for now, history, *_ in HISTORIES.values():
        decision = decide(now, history, LIMITS)
        assert decision.cancel is None or now.live == next(job for job in now.jobs or () if job.id == decision.cancel)
        assert decision.cancel is None or decision.action == "give-up"


verdicts = st.sampled_from(["alive", "slow", "stalled", "crashed", "finished", "unknown"])
steps = st.none() | st.integers(0, 1000)
states = st.sampled_from(
    ["PENDING", "STARTING", "RUNNING", "RECOVERING", "CANCELLING", "FAILED", "CANCELLED", "SUCCEEDED"]
)
jobs = st.none() | st.lists(st.builds(Job, st.integers(1, 9), states, st.integers(0, 30)), max_size=3).map(tuple)
readings = st.builds(PollReading, st.just(NOW_S), verdicts, st.just("w"), st.booleans(), steps, jobs)
ago = st.floats(1, 1e6)
histories = st.builds(
    History,
    st.lists(
        st.builds(
            Poll, ago.map(lambda s: NOW_S - s), verdicts, steps, st.none() | st.integers(1, 9), st.integers(0, 30)
        ),
        max_size=8,
    ).map(lambda polls: tuple(sorted(polls, key=lambda poll: poll.at_s))),
    st.lists(
        st.builds(
            BegunResume,
            st.integers(1, 9),
            ago.map(lambda s: NOW_S - s),
            st.integers(0, 1000),
        ),
        max_size=6,
    ).map(lambda resumes: tuple(sorted(resumes, key=lambda resume: resume.at_s))),
    st.none() | st.just("reason"),
)


@given(readings, histories)
def test_no_resume_where_it_could_do_harm(now: PollReading, history: History) -> None:
    decision = decide(now, history, LIMITS)
    assert decide(now, history, LIMITS) == decision
    if decision.action != "resume":
        return
    assert now.verdict in ("stalled", "crashed")
    assert now.resumable
    assert now.jobs is not None
    assert not any(job.is_live for job in now.jobs)
    assert history.gave_up is None
    assert count_fruitless_resumes(history, now, LIMITS) < LIMITS.most_fruitless
    newest = history.resumes[-1:]
    assert not newest or now.at_s - newest[0].at_s >= LIMITS.backoff_s


@pytest.mark.parametrize(
    ("saved", "fruitless"),
    [([], 0), ([0], 0), ([0, 0], 1), ([0, 5, 5, 5], 2), ([0, 5, 3, 5], 2), ([0, 5, 3, 6], 0), ([7, 0, 0, 0], 3)],
)
def test_only_a_newer_checkpoint_is_progress(saved: list[int], fruitless: int) -> None:
    assert count_fruitless(saved) == fruitless


def test_the_limit_is_that_of_the_supervisor() -> None:
    assert Restart().max_fruitless_attempts == MonitorLimits().most_fruitless


@given(st.lists(st.integers(0, 3), min_size=40))
def test_a_run_that_saves_nothing_more_is_always_ended(saved: list[int]) -> None:
    """Four values can rise four times, so three attempts without progress come within 4 x 3 + 1."""
    most = MonitorLimits().most_fruitless
    assert any(count_fruitless(saved[: end + 1]) >= most for end in range(13))
