from __future__ import annotations

import contextlib

import pytest

from prime_train.away.monitor.decide import MonitoredJob
from prime_train.away.monitor.poll import RunStatus
from tests.unit.away.world import AUTHOR, KilledError, World

DEAD = RunStatus("crashed", "no heartbeat for 50 min", True, 1200)
FAILED = (MonitoredJob(7, "FAILED_CONTROLLER", 2),)
SERVICES = 8  # of the first poll of a dead run: status, queue, issues, a new one, queue, body, launch, comment


def test_a_dead_run_is_resumed_once_and_the_issue_has_the_story() -> None:
    world = World(DEAD, FAILED)
    result = world.poll()
    assert (result.decision.action, result.outcome) == ("resume", "resume 1 started")
    assert len(world.launched) == 1
    assert world.issues[0]["labels"] == ["prime-train-monitor"]
    assert world.comments[1][0].startswith("Resume 1 from step 1,200: **started**. `crashed at step 1200")
    assert world.poll().decision.action == "wait"
    assert len(world.launched) == 1


def test_a_dry_run_changes_nothing() -> None:
    world = World(DEAD, FAILED)
    assert world.poll(dry_run=True).decision.action == "resume"
    assert (world.launched, world.issues) == ([], [])


@pytest.mark.parametrize("services", range(SERVICES + 1))
def test_a_poll_that_is_killed_anywhere_leads_to_one_resume(services: int) -> None:
    world = World(DEAD, FAILED)
    world.dies_after = services
    killed = services < SERVICES
    with pytest.raises(KilledError) if killed else contextlib.nullcontext():
        world.poll()
    world.dies_after = None
    for _ in range(12):
        world.now_s += 900
        world.poll()
    assert len(world.launched) == 1


def test_a_job_that_enters_the_queue_late_is_not_joined() -> None:
    """The poll is killed while it submits the run, and the job is seen only by the third poll after it."""
    world = World(DEAD, FAILED)
    world.dies_after = SERVICES - 2  # all before the launch
    with pytest.raises(KilledError):
        world.poll()
    world.dies_after = None
    for number in range(12):
        world.now_s += 900
        if number == 2:
            world.jobs = (*FAILED, MonitoredJob(8, "STARTING", 0))
        assert world.poll().decision.action == "wait"
    assert world.launched == []


def test_polls_that_are_always_killed_give_up_at_last() -> None:
    """A resume counts when it is begun: the body of the issue is written before the launch."""
    world = World(DEAD, FAILED)
    for _ in range(60):
        with contextlib.suppress(KilledError):
            world.dies_after = SERVICES - 2 - (1 if world.issues else 0)
            world.poll()
        world.now_s += 3600
    world.dies_after = None
    assert "3 resumes without a newer checkpoint" in world.poll().decision.why
    assert world.launched == []


@pytest.mark.parametrize("jobs", [(*FAILED, MonitoredJob(8, "PENDING", 0)), None])
def test_the_queue_is_read_again_before_a_launch(jobs: tuple[MonitoredJob, ...] | None) -> None:
    """A person starts the run while a poll decides; or the queue is out of reach by then."""
    world = World(DEAD, FAILED)

    def start_by_hand(reading: int) -> None:
        if reading == 2:
            world.jobs = jobs

    world.before_queue = start_by_hand
    assert world.poll().outcome.startswith("not resumed")
    assert world.launched == []
    world.jobs = FAILED
    world.before_queue = lambda _: None
    assert world.poll().outcome == "resume 1 started"  # what was not begun does not count


def test_issues_of_other_people_are_not_believed() -> None:
    world = World(DEAD, FAILED)
    world.ask("POST", "/issues", {"title": "Training demo", "body": "", "labels": ["prime-train-monitor"]}, "mallory")
    world.poll()
    mine = next(one for one in world.issues if one["user"]["login"] == AUTHOR)
    assert mine["number"] == 2
    world.issues[0]["body"], mine["body"] = mine["body"], ""  # a copy of the history, with another author
    world.jobs = FAILED
    assert world.poll().outcome == "resume 1 started"


def test_three_resumes_without_progress_are_the_last() -> None:
    world = World(DEAD, FAILED)
    for _ in range(60):
        world.poll()
        world.now_s += 3600
        world.jobs = tuple(job._replace(state="FAILED") for job in world.jobs or ())
    assert len(world.launched) == 3
    assert sum("gave up" in comment for comment in world.comments[1]) == 1
    world.issues[0]["state"] = "closed"  # a person has corrected the cause
    world.poll()
    assert len(world.launched) == 4


def test_a_launch_that_fails_is_counted_too() -> None:
    world = World(DEAD, FAILED)
    world.launch_fails = "no credentials"
    for _ in range(60):
        world.poll()
        world.now_s += 3600
    assert len(world.launched) == 3
    assert "**failed**. `no credentials`" in world.comments[1][0]


def test_the_issue_is_closed_when_the_run_ends() -> None:
    world = World(RunStatus("finished", "step 2000 of 2000", False, 2000))
    world.poll()
    assert world.issues[0]["state"] == "closed"
    assert world.launched == []


def test_a_run_that_only_loses_machines_is_cancelled() -> None:
    world = World(RunStatus("alive", "", True, 40), (MonitoredJob(7, "RECOVERING", 0),))
    for recoveries in range(14):
        world.jobs = tuple(job._replace(recoveries=recoveries) if job.is_live else job for job in world.jobs or ())
        world.poll()
        world.now_s += 1800
    assert world.cancelled == [7]
    assert world.launched == []
