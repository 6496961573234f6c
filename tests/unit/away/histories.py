"""Histories of runs as W&B shows them, each with the verdict that the facts ask for. Written by hand, as data.

Times are minutes after the run's start on a true clock. The verdicts follow from what really happened (`lives`) and
from what can be known of it: docs/step_times.md has the sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from prime_train.away.verdict.remote_reading import Job, Problem, RemoteReading
from prime_train.away.verdict.remote_verdict import Expectation, Verdict
from tests.fakes.wandb_server import Mood, RunRecord

START_S = 1_790_000_000.0  # in September 2026
MAX_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One look. `logged`: the minute up to which W&B has the history; `beat`: of the newest heartbeat."""

    at: float
    logged: float
    beat: float | None = None  # None: 0.3 min before the poll
    state: str = "running"
    system: float | None = -1.0  # minute of the newest system metrics; -1: half a minute before the poll; None: none
    gpu: float | None = 90.0
    job: Job = ""
    run_dir: float | None = None  # minute of its newest change
    exit_code: int | None = None
    cause: str = ""
    mood: Mood = "well"
    exists: bool = True
    summary_step: int | None = None  # what a frozen summary shows
    max_steps: int = MAX_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`lives`: the truth. `trainer_ahead`, `poller_ahead`: minutes by which their clocks are wrong."""

    name: str
    polls: tuple[Poll, ...]
    lives: bool
    verdict: Verdict
    resumable: bool = False
    is_complete: bool = False
    step_min: float = 0.5
    slow_from: float | None = None  # minute from which a step takes `slow_factor` times as long
    slow_factor: float = 1.0
    trainer_ahead: float = 0.0
    poller_ahead: float = 0.0
    problem: Problem = ""
    expectation: Expectation = field(default_factory=Expectation)
    source: str


def steps_until(history: History, minute: float) -> list[tuple[int, float]]:
    """Number and minute of each step up to `minute`, on a true clock."""
    found: list[tuple[int, float]] = []
    at, step = 0.0, 0
    while True:
        slow = history.slow_from is not None and at >= history.slow_from
        at += history.step_min * (history.slow_factor if slow else 1.0)
        if at > minute + 1e-9:
            return found
        step += 1
        found.append((step, at))


def record_of(history: History, poll: Poll) -> RunRecord | None:
    """What W&B holds at that poll."""
    if not poll.exists:
        return None
    rows = [(step, _trainer_s(history, at)) for step, at in steps_until(history, poll.logged)]
    system_at = _system_at(poll)
    system: list[dict[str, Any]] = []
    if system_at is not None:
        for before in (1.0, 0.5, 0.0):
            row: dict[str, Any] = {"_timestamp": _trainer_s(history, system_at - before), "system.cpu": 3.0}
            system.append(row if poll.gpu is None else row | {f"system.gpu.{n}.gpu": poll.gpu for n in (0, 1)})
    summary: dict[str, Any] = {}
    if poll.exit_code is not None:
        summary |= {"run/exit_code": poll.exit_code, "run/cause_class": poll.cause}
    if poll.summary_step is not None:
        summary |= {"_step": poll.summary_step, "_timestamp": _trainer_s(history, poll.summary_step * history.step_min)}
    return RunRecord(
        state=poll.state,
        created_s=START_S,
        heartbeat_s=_beat_s(poll),
        history=rows,
        summary=summary,
        config={"run": {"max_steps": poll.max_steps}},
        system=system,
    )


def reading_of(history: History, poll: Poll) -> RemoteReading:
    """What a faultless reader knows at that poll."""
    observed_s = observed(history, poll)
    if history.problem and poll is history.polls[-1]:
        return RemoteReading(observed_s, problem=history.problem)
    steps = steps_until(history, poll.logged)
    system_at = _system_at(poll)
    times = [(late - early) * 60 for (_, early), (_, late) in pairwise(steps)]
    return RemoteReading(
        observed_s,
        state=poll.state,
        heartbeat_s=_beat_s(poll),
        created_s=START_S,
        step=steps[-1][0] if steps else None,
        last_step_s=_trainer_s(history, steps[-1][1]) if steps else None,
        system_metrics_s=None if system_at is None else _trainer_s(history, system_at),
        gpu_busy=None if poll.gpu is None or system_at is None else poll.gpu / 100,
        step_s=sorted(times)[len(times) // 2] if len(times) > 1 else None,
        max_steps=poll.max_steps,
        exit_code=poll.exit_code,
        cause_class=poll.cause,
        run_dir_s=run_dir_s(history, poll),
        job=poll.job,
    )


def observed(history: History, poll: Poll) -> float:
    return START_S + 60 * (poll.at + history.poller_ahead)


def run_dir_s(history: History, poll: Poll) -> float | None:
    return None if poll.run_dir is None else START_S + 60 * (poll.run_dir + history.poller_ahead)


def _beat_s(poll: Poll) -> float:
    return START_S + 60 * (poll.at - 0.3 if poll.beat is None else poll.beat)


def _system_at(poll: Poll) -> float | None:
    return poll.at - 0.5 if poll.system == -1.0 else poll.system


def _trainer_s(history: History, minute: float) -> float:
    return START_S + 60 * (minute + history.trainer_ahead)


def _dead(at: float, death: float, **more: Any) -> Poll:
    """A poll after everything of the run fell silent at `death`."""
    return Poll(at=at, logged=death, beat=death, system=death, state=more.pop("state", "crashed"), **more)


HISTORIES: tuple[History, ...] = (
    History(
        name="it trains",
        polls=(Poll(at=100, logged=99), Poll(at=101, logged=100)),
        lives=True,
        verdict="alive",
        source="operator.md 2g",
    ),
    History(
        name="its metrics arrive half an hour late",
        polls=(Poll(at=100, logged=70), Poll(at=101, logged=70), Poll(at=102, logged=70)),
        lives=True,
        verdict="alive",
        source="issue: metrics at W&B lag by 20-30 min",
    ),
    History(
        name="it writes a checkpoint for nine minutes",
        polls=(Poll(at=100, logged=92, gpu=0), Poll(at=101, logged=92, gpu=0)),
        lives=True,
        verdict="alive",
        source="issue: checkpoints take 5-10 min",
    ),
    History(
        name="it was stopped for a checkpoint of nine minutes between two polls",
        polls=(Poll(at=100, logged=99, run_dir=99), Poll(at=110, logged=109.5)),
        lives=True,
        verdict="alive",
        source="issue: checkpoints take 5-10 min",
    ),
    History(
        name="a server loads its model for 65 minutes before the first step",
        polls=(Poll(at=64, logged=0, gpu=0), Poll(at=65, logged=0, gpu=0)),
        lives=True,
        verdict="alive",
        source="operator.md 2g: a vLLM server warms up for up to 4200 s",
    ),
    History(
        name="it never makes a first step",
        polls=(Poll(at=130, logged=0, gpu=0), Poll(at=131, logged=0, gpu=0)),
        lives=True,
        verdict="stalled",
        source="operator.md 2g: longer than any warm-up",
    ),
    History(
        name="its machine was taken away, and the cloud knows",
        polls=(_dead(160, 100, job="ended"), _dead(161, 100, job="ended")),
        lives=False,
        verdict="crashed",
        resumable=True,
        source="operator.md 2g: crashed = no heartbeats; the queue is the second witness",
    ),
    History(
        name="its machine was taken away ten minutes ago",
        polls=(_dead(109, 100, state="running"), _dead(110, 100)),
        lives=False,
        verdict="unknown",
        source="issue: the alarm is at 45 min",
    ),
    History(
        name="its machine was taken away and its bucket is quiet",
        polls=(_dead(160, 100, run_dir=95), _dead(161, 100, run_dir=95)),
        lives=False,
        verdict="crashed",
        resumable=True,
        source="issue: the run directory as the second witness",
    ),
    History(
        name="its machine was taken away, and one poll was made",
        polls=(_dead(160, 100, job="ended"),),
        lives=False,
        verdict="unknown",
        source="issue: two agreeing polls",
    ),
    History(
        name="its network is lost while it trains, and nothing else can be asked",
        polls=(_dead(170, 100), _dead(185, 100)),
        lives=True,
        verdict="unknown",
        source="wandb#1526, #3405, #3599",
    ),
    History(
        name="its network is lost while it trains, and the cloud runs its job",
        polls=(_dead(170, 100, job="lives"), _dead(185, 100, job="lives")),
        lives=True,
        verdict="unknown",
        source="wandb#1526: never resume beside a live run",
    ),
    History(
        name="its network is lost while it trains, and its bucket grows",
        polls=(_dead(170, 100, run_dir=168), _dead(185, 100, run_dir=181)),
        lives=True,
        verdict="alive",
        source="operator.md 2g: a fresh local heartbeat",
    ),
    History(
        name="a dead job is shown as running for ten days",
        polls=(
            _dead(14500, 100, state="running", job="ended"),
            _dead(14515, 100, state="running", job="ended"),
        ),
        lives=False,
        verdict="crashed",
        resumable=True,
        source="wandb#6779",
    ),
    History(
        name="nothing was heard for ten days, and nothing else was asked",
        polls=(_dead(14500, 100, state="running"), _dead(14515, 100, state="running")),
        lives=False,
        verdict="crashed",
        source="wandb#6779; without a second witness nothing is started",
    ),
    History(
        name="it hangs: system metrics go on, and its GPUs are idle",
        polls=(Poll(at=150, logged=100, gpu=0), Poll(at=151, logged=100, gpu=0)),
        lives=True,
        verdict="stalled",
        source="issue: 45 min and GPU utilisation as the second witness",
    ),
    History(
        name="no step for 50 minutes with busy GPUs: a long evaluation",
        polls=(Poll(at=150, logged=100, gpu=97), Poll(at=151, logged=100, gpu=97)),
        lives=True,
        verdict="slow",
        source="operator.md 2g: a long evaluation is no stall",
    ),
    History(
        name="no step for 100 minutes with busy GPUs: a collective that never ends",
        polls=(Poll(at=200, logged=100, gpu=100), Poll(at=201, logged=100, gpu=100)),
        lives=True,
        verdict="stalled",
        source="operator.md 2a: a hang in NCCL shows 100 %",
    ),
    History(
        name="no step for an hour, and no system metrics",
        polls=(Poll(at=160, logged=100, system=None), Poll(at=161, logged=100, system=None)),
        lives=True,
        verdict="unknown",
        source="issue: only with a second witness",
    ),
    History(
        name="its steps take 20 minutes, so an hour without one is nothing",
        polls=(Poll(at=265, logged=205, gpu=0), Poll(at=266, logged=205, gpu=0)),
        lives=True,
        verdict="alive",
        step_min=20,
        source="operator.md 2g: 5 x the median step",
    ),
    History(
        name="its steps take eight times as long as the config promises",
        polls=(Poll(at=200, logged=199), Poll(at=260, logged=259)),
        lives=True,
        verdict="slow",
        slow_from=10,
        slow_factor=8,
        expectation=Expectation(step_s=30.0),
        source="issue: the expected step time of the config",
    ),
    History(
        name="the trainer's clock is two hours behind",
        polls=(Poll(at=100, logged=99), Poll(at=101, logged=100)),
        lives=True,
        verdict="alive",
        trainer_ahead=-120,
        source="issue: clock skew",
    ),
    History(
        name="the poller's clock is an hour ahead",
        polls=(Poll(at=100, logged=99), Poll(at=101, logged=100)),
        lives=True,
        verdict="alive",
        poller_ahead=60,
        source="issue: clock skew",
    ),
    History(
        name="the poller's clock is three hours behind, and the run is dead",
        polls=(_dead(160, 100, job="ended"), _dead(161, 100, job="ended")),
        lives=False,
        verdict="unknown",
        poller_ahead=-180,
        source="issue: clock skew; without a clock no age can be judged",
    ),
    History(
        name="the summary is frozen while the history goes on",
        polls=(Poll(at=200, logged=199, summary_step=20), Poll(at=201, logged=200, summary_step=20)),
        lives=True,
        verdict="alive",
        source="operator.md 2g",
    ),
    History(
        name="it was dead at the first poll and is resumed at the second",
        polls=(_dead(160, 100, job="ended"), Poll(at=175, logged=174, job="lives")),
        lives=True,
        verdict="alive",
        source="operator.md 2g: two polls agree",
    ),
    History(
        name="it finished",
        polls=(_dead(510, 500, state="finished", exit_code=0), _dead(511, 500, state="finished", exit_code=0)),
        lives=False,
        verdict="finished",
        is_complete=True,
        source="operator.md 2g",
    ),
    History(
        name="it ended early without an error",
        polls=(_dead(410, 400, state="finished"), _dead(411, 400, state="finished")),
        lives=False,
        verdict="finished",
        source="operator.md 2g: an early stop needs its reason, not a resume",
    ),
    History(
        name="a person killed it",
        polls=(_dead(160, 100, state="killed", job="ended"), _dead(161, 100, state="killed", job="ended")),
        lives=False,
        verdict="crashed",
        source="operator.md 2g: never resume on killed",
    ),
    History(
        name="it saved on a notice of its cloud and ended with 75",
        polls=(
            _dead(110, 100, state="preempted", exit_code=75),
            _dead(111, 100, state="preempted", exit_code=75),
        ),
        lives=False,
        verdict="crashed",
        resumable=True,
        source="exit codes; wandb's mark_preempting",
    ),
    History(
        name="its machine was gone right after the notice",
        polls=(_dead(110, 100, state="preempted"), _dead(111, 100, state="preempted")),
        lives=False,
        verdict="crashed",
        resumable=True,
        source="wandb's mark_preempting: preempted = no heartbeat after the mark",
    ),
    History(
        name="its notice was withdrawn, and then its network was lost",
        polls=(_dead(110, 100, state="preempted", job="lives"), _dead(111, 100, state="preempted", job="lives")),
        lives=True,
        verdict="unknown",
        source="wandb#1526: never resume beside a live run",
    ),
    History(
        name="it has a notice and still saves",
        polls=(Poll(at=100, logged=99, state="preempting"), Poll(at=101, logged=99, state="preempting")),
        lives=True,
        verdict="alive",
        source="wandb's mark_preempting",
    ),
    History(
        name="it failed on its config",
        polls=(
            _dead(110, 100, state="failed", exit_code=5, cause="config"),
            _dead(111, 100, state="failed", exit_code=5, cause="config"),
        ),
        lives=False,
        verdict="crashed",
        source="exit codes: 5 is not retried",
    ),
    History(
        name="its attempts were spent on a broken GPU",
        polls=(
            _dead(110, 100, state="failed", exit_code=6, cause="hardware"),
            _dead(111, 100, state="failed", exit_code=6, cause="hardware"),
        ),
        lives=False,
        verdict="crashed",
        resumable=True,
        source="issue: hardware is recovered",
    ),
    History(
        name="it failed, and W&B does not know why",
        polls=(_dead(110, 100, state="failed"), _dead(111, 100, state="failed")),
        lives=False,
        verdict="crashed",
        source="operator.md 2g: failed = a nonzero exit; the reason is needed",
    ),
    History(
        name="W&B refuses: too many requests",
        polls=(Poll(at=100, logged=99), Poll(at=101, logged=100, mood="busy")),
        lives=True,
        verdict="unknown",
        problem="no_answer",
        source="operator.md 2g: API 429",
    ),
    History(
        name="W&B does not answer",
        polls=(_dead(160, 100), _dead(161, 100, mood="silent")),
        lives=False,
        verdict="unknown",
        problem="no_answer",
        source="issue: unknown where evidence is missing",
    ),
    History(
        name="a proxy answers in the place of W&B",
        polls=(Poll(at=100, logged=99, mood="broken"),),
        lives=True,
        verdict="unknown",
        problem="unreadable",
        source="issue: unknown where evidence is missing",
    ),
    History(
        name="the login is not accepted",
        polls=(Poll(at=100, logged=99), Poll(at=101, logged=100, mood="no_login")),
        lives=True,
        verdict="unknown",
        problem="auth",
        source="issue: unknown where evidence is missing",
    ),
    History(
        name="the run was deleted at W&B while it trains",
        polls=(Poll(at=100, logged=99), Poll(at=101, logged=100, exists=False)),
        lives=True,
        verdict="unknown",
        problem="not_found",
        source="issue: unknown where evidence is missing",
    ),
)
