"""The preset `rl-vllm-cpu`: a real server beside a trainer. Its engine is killed while rollouts are in progress."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import AttemptEnded, ChildStarted, Progress, RunClosed, ServiceReady, TrainerStarted, read
from prime_train.registry import gpus
from prime_train.toml.document import to_toml
from tests.system.vllm.serving import START_LIMIT_S, started, unused_port, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

TRAIN_LIMIT_S = 600.0
REWARDED_STEPS = 40
WINDOW = 10  # steps whose mean rewards are compared


def test_a_run_whose_engine_is_killed_in_mid_rollout_learns_on(python: str, tmp_path: Path) -> None:
    port = unused_port()
    preset = tomllib.loads(gpus.presets()["rl-vllm-cpu"].read_text(encoding="utf-8"))
    warmup = preset["rl"]["warmup_steps"]
    last = warmup + REWARDED_STEPS
    preset["run"] |= {"name": "served", "max_steps": last}
    preset["inference"] |= {"python": python, "port": port, "ready_limit_s": START_LIMIT_S}
    preset["checkpoint"] |= {"interval_steps": 10}
    with started(tmp_path, "".join(f"{key} = {to_toml(value)}\n" for key, value in preset.items()), port) as run:
        wait_until(
            lambda: (
                any(event.step > warmup + WINDOW for event in run.events(Progress)) or run.supervisor.poll() is not None
            ),
            START_LIMIT_S + TRAIN_LIMIT_S,
        )
        wait_until(lambda: run.running() > 0, TRAIN_LIMIT_S)
        run.engine_core().kill()
        ended = run.wait_for(AttemptEnded, 1)
        assert (ended.outcome, ended.cause_id) == ("failed", "VLLM007"), run.events_text()
        run.supervisor.wait(START_LIMIT_S + TRAIN_LIMIT_S)
        assert run.supervisor.returncode == ExitCode.OK, run.events_text()
        assert [closed.state for closed in run.events(RunClosed)] == ["finished"], run.events_text()
        assert run.processes() == []
        happened = [record.event for record in read(run.run_dir.events)]
        starts = [(type(event), event.role) for event in happened if isinstance(event, ChildStarted | ServiceReady)]
        assert starts == 2 * [(ChildStarted, "inference"), (ServiceReady, "inference"), (ChildStarted, "trainer")]
        resumed = [event.resume_step for event in run.events(TrainerStarted)]
        assert resumed[0] == 0
        assert resumed[1] > warmup, run.events_text()
        rows = [json.loads(line) for line in (run.run_dir.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, last + 1))
    check_rewarded_steps(rows[warmup:])


def check_rewarded_steps(rows: list[dict[str, Any]]) -> None:
    """The weights of each rollout lack one update at most, engine and trainer agree, and the reward rises."""
    assert all(row["behind_steps"] <= 1 and row["failed"] == 0 for row in rows)
    divergences = [row["mismatch_kl"] for row in rows if row["mismatch_kl"] is not None]
    assert len(divergences) > len(rows) / 2
    assert max(divergences) < 1e-3
    rewards = [row["reward"] for row in rows]
    assert fmean(rewards[-WINDOW:]) > 1.2 * fmean(rewards[:WINDOW])
