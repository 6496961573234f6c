"""A run with replicas is the same training as one without, and each goes on from the checkpoints of the other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import AllreduceOptions, TCPStore  # type: ignore[attr-defined]  # public (torch 2.13)

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.events import LighthouseLost, ReplicaLost, ReplicasJoined, TrainerFailed, TrainerFinished
from prime_train.spec import RunSpec
from tests.drills.replica_kills import ReplicaRun, find_lighthouse, until
from tests.drills.replica_launcher import DIARY_ENV
from tests.unit.trainer import tiny

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")

from torchft.process_group import ProcessGroupGloo

from prime_train.trainer.replicas.exchanges import set_limit

pytestmark = pytest.mark.timeout(600)


def _run(texts: Path, replicas: int, steps: int, rows: int = 6) -> RunSpec:
    return tiny.run_spec(
        texts,
        run=spec.Run(name="tiny", max_steps=steps, seed=7),
        parallel=spec.Parallel(processes=max(1, replicas), replicas=replicas, collective_limit_s=20.0),
        batch=spec.Batch(micro_batch=2, global_batch=rows),
        schedule=spec.Schedule(kind="constant", warmup_steps=3),
        checkpoint=spec.Checkpoint(interval_steps=4),
        optim=spec.Optim(skip_steps=(3, 6)),
    )


def _train(run_dir: RunDir, attempt: int, resume_step: int, diary: Path) -> tuple[int, str]:
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "warn", DIARY_ENV: str(diary)}
    command = [sys.executable, "-m", "tests.drills.replica_launcher", str(run_dir.path), "--attempt", str(attempt)]
    ended = subprocess.run(
        [*command, "--resume-step", str(resume_step)],
        env=os.environ | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=tiny.DEADLINE_S,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_a_run_goes_on_with_fewer_replicas_and_without(texts: Path, tmp_path: Path) -> None:
    straight = tiny.prepare(tmp_path / "straight", _run(texts, 0, 12))
    assert tiny.train(straight)[0] == 0

    run_dir = tiny.prepare(tmp_path / "replicas", _run(texts, 3, 4))
    code, output = _train(run_dir, 1, 0, tmp_path / "diary")
    assert code == 0, output
    tiny.prepare(run_dir.path, _run(texts, 2, 8))
    code, output = _train(run_dir, 2, 4, tmp_path / "diary")
    assert code == 0, output
    tiny.prepare(run_dir.path, _run(texts, 0, 12))
    code, output = tiny.train(run_dir, 3, 8)
    assert code == 0, output

    ours, theirs = tiny.metrics(run_dir), tiny.metrics(straight)
    assert [line["step"] for line in ours] == list(range(1, 13))
    assert [line["skipped"] for line in ours] == [line["skipped"] for line in theirs]
    assert [line["tokens_seen"] for line in ours] == [line["tokens_seen"] for line in theirs]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=1e-4)
    joined = [event.members for event in tiny.events(run_dir) if isinstance(event, ReplicasJoined)]
    assert joined == [("0", "1", "2"), ("0", "1")]
    finished = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFinished)]
    assert [event.step for event in finished] == [4, 8, 12]


def test_one_replica_trains_as_without_and_asks_for_one_quorum(texts: Path, tmp_path: Path) -> None:
    """The lighthouse that answered it is killed, and another one has no quorum: no step asks there."""
    straight = tiny.prepare(tmp_path / "straight", _run(texts, 0, 120))
    assert tiny.train(straight)[0] == 0

    run = ReplicaRun(tmp_path / "one", _run(texts, 1, 120))
    with run.started() as process:
        until(process, lambda: run.step(0) >= 2)
        lighthouse = find_lighthouse(process.pid)
        lighthouse.kill()
        until(process, lambda: any(isinstance(event, LighthouseLost) for event in tiny.events(run.run_dir)))
        assert process.wait(tiny.DEADLINE_S) == 0, (run.folder / "log").read_text()
    ours, theirs = tiny.metrics(run.run_dir), tiny.metrics(straight)
    assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]
    assert {line["replicas"] for line in ours} == {1}
    assert len({words[2] for _, words in run.lines() if words[0] == "commit"}) == 1


def test_a_sum_ends_by_the_limit_that_was_set_last() -> None:
    """Two groups in one process, of which one never enters the sum. The limit before was an hour."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = [ProcessGroupGloo(timeout=timedelta(hours=1)) for _ in range(2)]
    address = f"127.0.0.1:{store.port}/test"
    threads = [Thread(target=group.configure, args=(address, "r", rank, 2)) for rank, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manager = SimpleNamespace()
    set_limit(manager, groups[0], torch.device("cpu"), 1.0)
    with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout"):
        groups[0].allreduce([torch.ones(3)], AllreduceOptions()).wait()
    assert manager._timeout == timedelta(seconds=1)


def test_what_replicas_cannot_do_ends_the_attempt_with_its_reason(texts: Path, tmp_path: Path) -> None:
    run = _run(texts, 2, 4)
    run_dir = tiny.prepare(tmp_path / "run", replace(run, model=replace(run.model, experts=2, experts_per_token=1)))
    code, output = _train(run_dir, 1, 0, tmp_path / "diary")
    assert code == 5, output
    failed = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert [(event.where, event.cause_class) for event in failed] == [("model.experts", "config")]
    assert any(isinstance(event, ReplicaLost) for event in tiny.events(run_dir))
