"""Replicas of several processes, DDP or FSDP2 inside, are the same training as these processes without replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.rank_times import read_all_times
from prime_train.events import ReplicasJoined, TrainerFinished, TrainerStarted
from prime_train.spec import RunSpec
from tests.system.trainer.test_replicas import _train
from tests.unit.trainer import tiny

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
pytestmark = pytest.mark.timeout(600)


def _run(texts: Path, processes: int, replicas: int, steps: int, shards: int, micro_batch: int = 2) -> RunSpec:
    return tiny.run_spec(
        texts,
        run=spec.Run(name="tiny", max_steps=steps, seed=7),
        parallel=spec.Parallel(processes=processes, replicas=replicas, dp_shard=shards, collective_limit_s=30.0),
        batch=spec.Batch(micro_batch=micro_batch, global_batch=8),
        schedule=spec.Schedule(kind="constant", warmup_steps=3),
        checkpoint=spec.Checkpoint(interval_steps=3),
    )


@pytest.mark.parametrize("shards", [1, 2])
def test_groups_train_as_their_processes_do_and_go_on_in_any_number(shards: int, texts: Path, tmp_path: Path) -> None:
    straight = tiny.prepare(tmp_path / "straight", _run(texts, 4, 0, 12, 1))
    code, output = tiny.train(straight, processes=4)
    assert code == 0, output

    run_dir = tiny.prepare(tmp_path / "groups", _run(texts, 4, 2, 4, shards))
    code, output = _train(run_dir, 1, 0, tmp_path / "diary")
    assert code == 0, output
    # A part of its rows is blank for one rank of each replica: 8 rows over 6 ranks, one row each time.
    tiny.prepare(run_dir.path, _run(texts, 6, 2, 6, 1, micro_batch=1))
    code, output = _train(run_dir, 2, 4, tmp_path / "diary")
    assert code == 0, output
    tiny.prepare(run_dir.path, _run(texts, 2, 1, 8, shards))
    code, output = _train(run_dir, 3, 6, tmp_path / "diary")
    assert code == 0, output
    tiny.prepare(run_dir.path, _run(texts, 1, 0, 12, 1))
    code, output = tiny.train(run_dir, 4, 8)
    assert code == 0, output

    ours, theirs = tiny.metrics(run_dir), tiny.metrics(straight)
    assert [line["step"] for line in ours] == list(range(1, 13))
    assert [line["tokens_seen"] for line in ours] == [line["tokens_seen"] for line in theirs]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=1e-4)
    found = tiny.events(run_dir)
    assert [event.members for event in found if isinstance(event, ReplicasJoined)] == [("0", "1"), ("0", "1"), ("0",)]
    assert [event.step for event in found if isinstance(event, TrainerFinished)] == [4, 6, 8, 12]
    assert [event.world_size for event in found if isinstance(event, TrainerStarted)] == [4, 6, 2, 1]
    timed = {number: sorted(read_all_times(run_dir.rank_times(number), run_dir.path)) for number in (1, 2, 3)}
    assert timed == {1: [0, 1, 2, 3], 2: list(range(6)), 3: [0, 1]}
