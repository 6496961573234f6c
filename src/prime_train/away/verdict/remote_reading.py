"""What W&B and other witnesses report of a run at one moment, and what several such readings show. Judges nothing.

Three clocks take part: `observed_s` is the poller's, `heartbeat_s` the W&B server's, `last_step_s` and
`system_metrics_s` are the training machine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from prime_train.core.installation import install_command

# What the cloud reports of the machine's job: "" = not asked.
Job = Literal["", "lives", "ended"]
# Why W&B could not be read.
Problem = Literal["", "not_installed", "auth", "not_found", "rate_limited", "no_answer", "unreadable"]

_PROBLEMS = {
    "not_installed": ("the package wandb is not installed", install_command("wandb")),
    "auth": ("W&B does not accept the login", "wandb login, or set WANDB_API_KEY to a key that may read the project"),
    "not_found": ("W&B has no such run: it was deleted, never started, or belongs to others", "check the path"),
    "rate_limited": ("W&B refused the request, because there were too many", "look again later, and less often"),
    "no_answer": ("W&B did not answer", "look again later"),
    "unreadable": ("the answer of W&B could not be read", "look again later; if it stays so, update wandb"),
}


@dataclass(frozen=True, slots=True)
class RemoteReading:
    """One look at a run. With a `problem`, nothing but `observed_s` and `detail` is known."""

    observed_s: float
    state: str = ""  # W&B's: running, finished, crashed, failed, killed, pending, preempting, preempted
    heartbeat_s: float | None = None
    created_s: float | None = None  # the W&B server's clock
    step: int | None = None  # None before the first logged step
    last_step_s: float | None = None  # when the newest logged row was written
    system_metrics_s: float | None = None  # when the newest system metrics were taken
    gpu_busy: float | None = None  # mean utilisation of all GPUs in the newest system metrics, 0 to 1
    step_s: float | None = None  # median time of a step in the run's own history
    log_every_steps: int = 1  # between two logged rows
    max_steps: int | None = None  # in the config that W&B holds
    exit_code: int | None = None  # prime-train's own, which its mirror writes at the end of a run
    cause_class: str = ""  # of the latest failed attempt, by the mirror
    run_dir_s: float | None = None  # newest change of the run directory where it can be reached, poller's clock
    job: Job = ""
    problem: Problem = ""
    detail: str = ""  # of the problem

    def explain_problem(self) -> tuple[str, str]:
        """Why W&B could not be read, and what to do."""
        why, fix = _PROBLEMS[self.problem]
        return f"{why}: {self.detail}" if self.detail else why, fix


def find_before(readings: Sequence[RemoteReading], apart_s: float) -> RemoteReading | None:
    """The latest reading that is `apart_s` or more before the newest one, so that it counts as a second poll."""
    near_s = readings[-1].observed_s - apart_s
    return next((reading for reading in reversed(readings[:-1]) if reading.observed_s <= near_s), None)


def measure_still_s(readings: Sequence[RemoteReading]) -> float:
    """How long the run made no step for certain: between polls, and between metrics of one clock."""
    newest = readings[-1]
    same = list(takewhile(lambda reading: reading.step == newest.step, reversed(readings)))
    polled_s = newest.observed_s - same[-1].observed_s
    if newest.system_metrics_s is None or newest.last_step_s is None:
        return polled_s
    return max(polled_s, newest.system_metrics_s - newest.last_step_s)
