"""One process of a replica of two is killed or hangs: its replica is lost as a whole, and the other one trains on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.drained_gpus import write_drained
from prime_train.events import ReplicaLost
from prime_train.spec.supervision import Heartbeat, PrimeTrain
from tests.drills.replica_kills import ROWS, ReplicaCounts, ReplicaRun, _compare, drilled_run, judge_rows, until
from tests.drills.replica_launcher import GPUS_ENV, HANG_ENV
from tests.unit.trainer import tiny

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
pytestmark = pytest.mark.timeout(600)
_GROUPS, _RANKS = 2, 2
_HANGS_AT = 8


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    return tiny.write_texts(tmp_path / "texts")


def _layout(shards: int, limit_s: float = 10.0) -> spec.Parallel:
    return spec.Parallel(processes=_GROUPS * _RANKS, replicas=_GROUPS, dp_shard=shards, collective_limit_s=limit_s)


def _find_pid(run: ReplicaRun, replica: int, rank: int) -> int:
    """The newest process of a rank, by the diary."""
    begun = [words for of, words in run.lines() if of == replica and words[0] == "begin"]
    return int(next(words[5] for words in reversed(begun) if words[2].endswith(f"/{rank}")))


@pytest.mark.parametrize(("shards", "victim", "rank"), [(1, 1, 1), (1, 0, 1), (1, 0, 0), (2, 1, 1), (2, 0, 0)])
def test_a_killed_process_takes_its_replica_along_and_the_other_goes_on(
    shards: int, victim: int, rank: int, tmp_path: Path, texts: Path
) -> None:
    batch = spec.Batch(micro_batch=1, global_batch=ROWS)
    run = ReplicaRun(tmp_path, drilled_run(texts, parallel=_layout(shards), batch=batch))
    with run.started() as process:
        run.await_all(process, [0])
        pids = {_find_pid(run, victim, each) for each in range(_RANKS)}
        reached = run.step(1 - victim)
        os.kill(_find_pid(run, victim, rank), signal.SIGKILL)
        until(process, lambda: run.step(1 - victim) > reached + 1)
        until(process, lambda: not pids & {_find_pid(run, victim, each) for each in range(_RANKS)})
        run.await_all(process, [run.step(number) for number in range(_GROUPS)])
        run.stop(process)
    lost = [event for event in tiny.events(run.run_dir) if isinstance(event, ReplicaLost)]
    assert [(one.replica, one.what) for one in lost] == [(victim, "it was killed by signal 9")]
    counts = ReplicaCounts()
    judge_rows(run, counts)
    _compare(run, texts, counts)
    wrong = (counts.lost_rows, counts.different_weights, counts.missing_steps)
    assert (*wrong, counts.different_tokens, counts.different_losses) == (0, 0, 0, 0, 0), counts.seen
    assert shards > 1 or not _find_different_ranks(run)


def test_a_drained_gpu_takes_its_replica_in_shards_away_and_brings_it_back(tmp_path: Path, texts: Path) -> None:
    run = ReplicaRun(tmp_path, drilled_run(texts, parallel=_layout(_RANKS)), {GPUS_ENV: "1"})
    with run.started() as process:
        run.await_all(process, [0])
        write_drained(run.run_dir, 1, ["GPU-1"])
        until(process, lambda: run.members() == ("0",))
        reached = run.step(0)
        until(process, lambda: run.step(0) > reached + 5)
        write_drained(run.run_dir, 1, [])
        run.await_all(process, [run.step(0)])
        run.stop(process)
    lost = [event for event in tiny.events(run.run_dir) if isinstance(event, ReplicaLost)]
    assert [(one.replica, one.what, one.gpus) for one in lost] == [(1, "GPU-1 is drained", ("GPU-1",))]
    counts = ReplicaCounts()
    judge_rows(run, counts)
    assert (counts.lost_rows, counts.different_weights) == (0, 0), counts.seen


def _find_different_ranks(run: ReplicaRun) -> list[tuple[str, str]]:
    """The steps in one quorum that ranks with the whole model began with different weights."""
    begun: dict[tuple[str, str], set[str]] = {}
    for _, words in run.lines():
        if words[0] == "begin":
            begun.setdefault((words[1], words[2].rpartition("/")[0]), set()).add(words[3])
    return [key for key, weights in begun.items() if len(weights) > 1]


@pytest.mark.parametrize(("kind", "rank"), [("sleep", 1), ("stop", 0), ("early", 1), ("deadlock", 1)])
def test_a_hung_process_is_killed_with_its_replica(kind: str, rank: int, tmp_path: Path, texts: Path) -> None:
    # Below the limit of a sum, after which the other ranks of the replica would end it by themselves.
    settings = PrimeTrain(heartbeat=Heartbeat(step_limit_s=6.0))
    run = drilled_run(texts, prime_train=settings, parallel=_layout(1, limit_s=12.0))
    hung = ReplicaRun(tmp_path, run, {HANG_ENV: f"1 {_HANGS_AT} {kind} {rank}"})
    with hung.started() as process:
        until(process, lambda: all(hung.step(number) > _HANGS_AT for number in range(_GROUPS)))
        hung.await_all(process, [_HANGS_AT])
        hung.stop(process)
    lost = [event for event in tiny.events(hung.run_dir) if isinstance(event, ReplicaLost)]
    # Between two steps the sign of the later one is not there yet.
    assert [(one.replica, one.step) for one in lost] == [(1, _HANGS_AT - (2 if kind == "early" else 1))]
    assert "it hung" in lost[0].what
    counts = ReplicaCounts()
    judge_rows(hung, counts)
    assert (counts.lost_rows, counts.different_weights) == (0, 0), counts.seen
