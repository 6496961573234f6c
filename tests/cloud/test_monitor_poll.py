from __future__ import annotations

import random

import pytest

from prime_train.cloud.monitor import Job
from prime_train.cloud.monitor_inputs import RunStatus
from tests.cloud.world import AUTHOR, World, interleave, run_poll, run_to_end

pytestmark = pytest.mark.spread
DEAD = RunStatus("crashed", "no heartbeat for 50 min", True, 1200)
FAILED = (Job(7, "FAILED_CONTROLLER", 2),)


def test_a_dead_run_is_resumed_once_and_the_issue_has_the_story() -> None:
    world = World(DEAD, FAILED)
    result = run_poll(world)
    assert (result.decision.action, result.outcome) == ("resume", "resume 1 started")
    assert len(world.launched) == 1
    assert world.issues[0]["labels"] == ["prime-train-monitor"]
    assert "Resume 1 from step 1,200: **started**" in world.comments[1][0]["body"]
    assert run_poll(world).decision.action == "wait"
    assert len(world.launched) == 1


def test_a_dry_run_changes_nothing() -> None:
    world = World(DEAD, FAILED)
    assert run_poll(world, dry_run=True).decision.action == "resume"
    assert (world.launched, world.issues) == ([], [])


@pytest.mark.parametrize("block", range(10))
def test_no_double_resume_in_overlapping_polls(block: int) -> None:
    """1,000 times two to five polls of one dead run, interleaved at every step of each: exactly one launch."""
    for seed in range(block * 100, block * 100 + 100):
        draw = random.Random(seed)
        world = World(DEAD, FAILED)
        polls = [world.start(f"{number}-1") for number in range(draw.randint(2, 5))]
        interleave(world, polls, draw, longest_s=20)
        assert len(world.launched) == 1, seed


@pytest.mark.parametrize("block", range(10))
def test_polls_that_die_anywhere_start_no_second_job(block: int) -> None:
    """A runner may be killed between two steps. Later polls go on, and never beside a live job."""
    resumed = 0
    for seed in range(block * 100, block * 100 + 100):
        draw = random.Random(seed)
        world = World(DEAD, FAILED)
        for _ in range(6):
            before = len(world.launched)
            polls = [world.start(f"{number}-1") for number in range(draw.randint(1, 3))]
            interleave(world, polls, draw, dies=0.08, longest_s=20)
            assert len(world.launched) - before <= 1, seed
            world.now_s += 900
        assert len(world.launched) <= 1, seed
        resumed += len(world.launched)
    assert resumed > 80  # a run whose polls die now and then is still resumed


def test_a_poll_that_slept_after_its_claim_launches_nothing() -> None:
    world = World(DEAD, FAILED)
    sleeper = world.start("1-1")
    step = next(sleeper)
    while len(world.comments.get(1, [])) == 0:
        step = sleeper.send(world.answer(step))
    world.now_s += 3600  # long enough that its claim counts as failed
    run_poll(world, "2-1")
    world.jobs = FAILED
    assert "suspended" in run_to_end(world, sleeper, step).outcome
    assert len(world.launched) == 1


@pytest.mark.parametrize("jobs", [(*FAILED, Job(8, "PENDING", 0)), None])
def test_the_queue_is_read_again_after_the_claim(jobs: tuple[Job, ...] | None) -> None:
    """A person starts the run while a poll decides; or the queue is out of reach by then."""
    world = World(DEAD, FAILED)
    late = world.start("1-1")
    step = next(late)
    while len(world.comments.get(1, [])) == 0:
        step = late.send(world.answer(step))
    world.jobs = jobs
    assert run_to_end(world, late, step).outcome.startswith("not resumed")
    assert world.launched == []
    assert "**dropped**" in world.comments[1][0]["body"]


def test_comments_and_issues_of_other_people_are_not_believed() -> None:
    world = World(DEAD, FAILED)
    world.ask("POST", "/issues", {"title": "Training demo", "body": "", "labels": ["prime-train-monitor"]}, "mallory")
    run_poll(world)
    mine = next(one["number"] for one in world.issues if one["user"]["login"] == AUTHOR)
    stolen = world.comments[mine][0]["body"].replace("started", "pending")
    world.comments[mine].clear()
    world.ask("POST", f"/issues/{mine}/comments", {"body": stolen}, "mallory")
    world.jobs = FAILED
    assert run_poll(world).outcome.endswith("started")
    assert len(world.launched) == 2


def test_three_resumes_without_progress_are_the_last() -> None:
    world = World(DEAD, FAILED)
    for _ in range(60):
        run_poll(world)
        world.now_s += 3600
        world.jobs = tuple(job._replace(state="FAILED") for job in world.jobs or ())
    assert len(world.launched) == 3
    assert sum("gave up" in one["body"] for one in world.comments[1]) == 1
    world.issues[0]["state"] = "closed"  # a person has corrected the cause
    run_poll(world)
    assert len(world.launched) == 4


def test_a_launch_that_fails_is_counted_too() -> None:
    world = World(DEAD, FAILED)
    world.launch_fails = "no credentials"
    for _ in range(60):
        run_poll(world)
        world.now_s += 3600
    assert len(world.launched) == 3


def test_the_issue_is_closed_when_the_run_ends() -> None:
    world = World(RunStatus("finished", "step 2000 of 2000", False, 2000))
    run_poll(world)
    assert world.issues[0]["state"] == "closed"
    assert world.launched == []


def test_a_run_that_only_loses_machines_is_cancelled() -> None:
    world = World(RunStatus("alive", "", True, 40), (Job(7, "RECOVERING", 0),))
    for recoveries in range(14):
        world.jobs = tuple(job._replace(recoveries=recoveries) if job.is_live else job for job in world.jobs or ())
        run_poll(world)
        world.now_s += 1800
    assert world.cancelled == [7]
    assert world.launched == []


def test_many_comments_are_read_to_the_end() -> None:
    world = World(DEAD, FAILED)
    run_poll(world)
    started = world.comments[1].pop()
    for _ in range(250):
        world.ask("POST", "/issues/1/comments", {"body": "are we there yet?"}, "anyone")
    world.comments[1].append(started)
    world.jobs = FAILED
    assert run_poll(world).decision.action == "wait"
