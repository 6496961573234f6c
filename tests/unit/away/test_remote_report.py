"""The document and the lines of a verdict."""

from __future__ import annotations

from prime_train.away.verdict.remote_reading import RemoteReading
from prime_train.away.verdict.remote_verdict import judge
from prime_train.cli.status_wandb import as_json, as_lines

READINGS = (
    RemoteReading(1_790_000_000.0, problem="no_answer", detail="no answer within 90 s"),
    RemoteReading(
        1_790_000_060.0,
        state="running",
        heartbeat_s=1_790_000_040.0,
        step=1200,
        last_step_s=1_790_000_030.5,
        system_metrics_s=1_790_000_045.0,
        gpu_busy=0.87654,
        step_s=12.3456,
        max_steps=5000,
        run_dir_s=1_790_000_050.0,
        job="lives",
    ),
)


def test_the_document_of_version_1() -> None:
    """Other programs read it: a change of a key is a change of the version."""
    unknown = dict.fromkeys(
        ("state", "heartbeat", "step", "last_step", "system_metrics", "gpu_busy", "step_s", "run_directory", "job")
    ) | dict.fromkeys(("heartbeat_age_s", "run_directory_age_s"))
    first = {"observed": "2026-09-21T14:13:20Z", "problem": "no_answer", "detail": "no answer within 90 s"}
    second = {
        "observed": "2026-09-21T14:14:20Z",
        "problem": None,
        "detail": None,
        "state": "running",
        "heartbeat": "2026-09-21T14:14:00Z",
        "heartbeat_age_s": 20.0,
        "step": 1200,
        "last_step": "2026-09-21T14:13:50Z",
        "system_metrics": "2026-09-21T14:14:05Z",
        "gpu_busy": 0.877,
        "step_s": 12.346,
        "run_directory": "2026-09-21T14:14:10Z",
        "run_directory_age_s": 10.0,
        "job": "lives",
        "run_exit_code": None,
    }
    assert as_json("me/nano/k3x9", judge(READINGS), READINGS) == {
        "version": 1,
        "run": "me/nano/k3x9",
        "verdict": "alive",
        "why": "its run directory is being written",
        "fix": None,
        "resumable": False,
        "complete": False,
        "step": 1200,
        "max_steps": 5000,
        "exit_code": 0,
        "polls": [first | unknown | {"run_exit_code": None}, second],
    }


def test_the_lines_leave_out_what_is_not_known() -> None:
    lines = dict(as_lines(as_json("me/nano/k3x9", judge(READINGS), READINGS)))
    assert lines["step"] == "1,200 of 5,000"
    assert lines["heartbeat"] == "20 s ago"
    assert lines["GPUs"] == "88% busy"
    assert lines["resumable"] == "no"
    unread = dict(as_lines(as_json("me/nano/k3x9", judge(READINGS[:1]), READINGS[:1])))
    assert set(unread) == {"verdict", "why", "resumable", "fix"}
    assert unread["why"] == "W&B did not answer: no answer within 90 s"
