"""Replicas that are killed and that hang: the others train on, and no row is lost. More by hand: `replica_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.drained_gpus import write_drained
from prime_train.events import LighthouseLost, ReplicaLost
from prime_train.spec.supervision import Heartbeat, PrimeTrain
from tests.drills.replica_kills import (
    REPLICAS,
    ReplicaCounts,
    ReplicaRun,
    drilled_run,
    find_lighthouse,
    judge_rows,
    kill_replicas,
    until,
)
from tests.drills.replica_launcher import GPUS_ENV, HANG_ENV
from tests.unit.trainer import tiny

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
pytestmark = pytest.mark.timeout(600)
_HUNG = 1
_HANGS_AT = 8


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    return tiny.write_texts(tmp_path / "texts")


def test_a_killed_replica_loses_no_row_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    counts = kill_replicas(0, 2, tmp_path)
    assert (counts.kills, counts.rejoined, counts.inside_sums) == (2, 2, 1)
    wrong = (counts.lost_rows, counts.different_weights, counts.missing_steps)
    assert (*wrong, counts.different_tokens, counts.different_losses) == (0, 0, 0, 0, 0), counts.seen


@pytest.mark.parametrize("kind", ["sleep", "stop", "deadlock"])
def test_a_hung_replica_is_killed_and_the_others_go_on(kind: str, tmp_path: Path, texts: Path) -> None:
    settings = PrimeTrain(heartbeat=Heartbeat(step_limit_s=6.0))
    layout = spec.Parallel(processes=REPLICAS, replicas=REPLICAS, collective_limit_s=3.0)
    run = drilled_run(texts, prime_train=settings, parallel=layout)
    hung = ReplicaRun(tmp_path, run, {HANG_ENV: f"{_HUNG} {_HANGS_AT} {kind}"})
    with hung.started() as process:
        until(process, lambda: all(hung.step(number) > _HANGS_AT for number in range(REPLICAS)))
        hung.await_all(process, [_HANGS_AT])
        hung.stop(process)
    lost = [event for event in tiny.events(hung.run_dir) if isinstance(event, ReplicaLost)]
    assert [(one.replica, one.step) for one in lost] == [(_HUNG, _HANGS_AT - 1)]
    assert "it hung" in lost[0].what
    _assert_whole(hung)


def test_a_drained_replica_ends_and_comes_back_while_the_others_train_on(tmp_path: Path, texts: Path) -> None:
    run = ReplicaRun(tmp_path, drilled_run(texts), {GPUS_ENV: "1"})
    with run.started() as process:
        run.await_all(process, [0])
        write_drained(run.run_dir, 1, ["GPU-1", "GPU-of-another-run"])
        until(process, lambda: run.members() == ("0", "2"))
        reached = max(run.step(0), run.step(2))
        until(process, lambda: min(run.step(0), run.step(2)) > reached + 5)
        write_drained(run.run_dir, 1, [])
        run.await_all(process, [run.step(0), run.step(2)])
        run.stop(process)
    lost = [event for event in tiny.events(run.run_dir) if isinstance(event, ReplicaLost)]
    assert [(one.replica, one.what, one.gpus) for one in lost] == [(1, "GPU-1 is drained", ("GPU-1",))]
    _assert_whole(run)


def test_a_lost_lighthouse_is_started_again_and_training_goes_on(tmp_path: Path, texts: Path) -> None:
    run = ReplicaRun(tmp_path, drilled_run(texts))
    with run.started() as process:
        run.await_all(process, [0])
        before = find_lighthouse(process.pid)
        before.kill()
        until(process, lambda: any(isinstance(event, LighthouseLost) for event in tiny.events(run.run_dir)))
        run.await_all(process, [run.step(number) for number in range(REPLICAS)])
        assert find_lighthouse(process.pid).pid != before.pid
        run.stop(process)
    assert not [event for event in tiny.events(run.run_dir) if isinstance(event, ReplicaLost)]
    _assert_whole(run)


def _assert_whole(run: ReplicaRun) -> None:
    """Each row of each step was used once, and each step has its line."""
    counts = ReplicaCounts()
    judge_rows(run, counts)
    assert (counts.lost_rows, counts.different_weights) == (0, 0), counts.seen
    steps = [line["step"] for line in tiny.metrics(run.run_dir)]
    assert steps == list(range(1, len(steps) + 1))
