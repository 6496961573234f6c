"""Four real ranks on gloo: the slow one is named, and none that is well."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.rank_times import read_all_times
from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import Live, State
from prime_train.supervise.watches.straggler.watch import StragglerWatch
from prime_train.supervise.watches.watch import Alarm
from tests import fork_server
from tests.drills.slow_rank import FORWARD_ENV
from tests.unit.trainer import tiny

RANKS = 4
SLOW = 2
NAMED_WITHIN_S = 60.0


@contextmanager
def training(folder: Path, forward_s: tuple[float, ...], replicas: int = 0, shards: int = 1) -> Iterator[RunDir]:
    """Four ranks that train until the end of the block, under torchrun or as replicas."""
    run = tiny.run_spec(
        tiny.write_texts(folder / "texts"),
        run=spec.Run(name="tiny", max_steps=10**6, seed=7),
        # A connection that a busy machine loses at the start ends before the test's own deadline.
        parallel=spec.Parallel(
            processes=RANKS, replicas=replicas, dp_shard=shards, collective_limit_s=30.0 if replicas else None
        ),
        batch=spec.Batch(micro_batch=1, global_batch=RANKS),
        checkpoint=spec.Checkpoint(interval_steps=None),
        eval=spec.Eval(interval_steps=None, held_out_ratio=0.1, batches=1),  # each replica would measure
    )
    run_dir = tiny.prepare(folder / "run", run)
    run_dir.attempt(1).mkdir(parents=True)
    python = fork_server.interpreter()
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command += ["-m", "tests.drills.slow_rank"]
    if replicas:
        command = [sys.executable, "-m", "tests.drills.replica_launcher"]
    command += [str(run_dir.path), "--attempt", "1", "--resume-step", "0"]
    variables = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": python, FORWARD_ENV: ",".join(map(str, forward_s))}
    variables |= {"GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "warn", "REPLICA_DIARY": str(folder / "diary")}
    with open(folder / "log", "ab") as log:  # no pipe, which would be full after some lines of each replica
        process = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
    try:
        yield run_dir
    finally:
        if replicas:
            run_dir.stop_request(1).touch()
        else:
            process.terminate()
        process.wait(tiny.DEADLINE_S)


def look(watch: StragglerWatch) -> tuple[Alarm, ...]:
    return watch.look(State(live=Live(1, last_sign_s=time.time())), time.time())


def newest_step(run_dir: RunDir) -> int:
    """The newest step that each rank has written."""
    found = read_all_times(run_dir.rank_times(1), run_dir.path)
    return min((times.steps[-1].step for times in found.values() if times.steps), default=0) * (len(found) == RANKS)


@pytest.mark.parametrize(("replicas", "shards"), [(0, 1), (2, 1), (RANKS, 1), (0, RANKS), (2, 2)])
def test_the_slow_rank_is_named_and_no_other_one(replicas: int, shards: int, tmp_path: Path) -> None:
    if replicas:
        pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
    forward_s = tuple(0.08 if rank == SLOW else 0.04 for rank in range(RANKS))
    with training(tmp_path, forward_s, replicas, shards) as run_dir:
        watch = StragglerWatch(run_dir, "alert")
        tiny.until(lambda: newest_step(run_dir) > 0)
        began_s, named = time.monotonic(), set[str]()
        while time.monotonic() < began_s + NAMED_WITHIN_S and not named:
            named |= {alarm.subject for alarm in look(watch)}
            time.sleep(0.2)
        assert named == {f"rank {SLOW}"}
        (alarm,) = look(watch)
        assert (alarm.name, alarm.answer, alarm.cause_class) == ("slow_rank", "note", "hardware")
        until_step = newest_step(run_dir) + 100
        while newest_step(run_dir) < until_step:
            named |= {alarm.subject for alarm in look(watch)}
            time.sleep(0.2)
        assert named == {f"rank {SLOW}"}
        times = read_all_times(run_dir.rank_times(1), run_dir.path)
        if shards == 1:  # else most of the waits are in the blocks, where they are not measured
            waits = {rank: sum(one.wait_s for one in found.steps) for rank, found in times.items()}
            assert min(waits, key=lambda rank: waits[rank]) == SLOW  # the others wait for it


def test_no_rank_is_named_where_all_are_equal(tmp_path: Path) -> None:
    with training(tmp_path, (0.05,) * RANKS) as run_dir:
        watch = StragglerWatch(run_dir, "alert")
        tiny.until(lambda: newest_step(run_dir) >= 20)
        while newest_step(run_dir) < 200:
            assert look(watch) == ()
            time.sleep(0.2)


@pytest.mark.parametrize("head", [b"", b"{}", b"\xff" * 600, b'{"rank": 0, "machine": 7, "gpu": ""}'])
def test_a_file_that_no_rank_wrote_is_left_out(tmp_path: Path, head: bytes) -> None:
    content, run_dir = head.ljust(520), RunDir(tmp_path)
    run_dir.rank_times(1).mkdir(parents=True)
    (run_dir.rank_times(1) / "rank0.times").write_bytes(content)
    (run_dir.rank_times(1) / "rank1.times").symlink_to("rank0.times")
    os.mkfifo(run_dir.rank_times(1) / "rank2.times")
    assert read_all_times(run_dir.rank_times(1), run_dir.path) == {}
    assert look(StragglerWatch(run_dir, "drain")) == ()
