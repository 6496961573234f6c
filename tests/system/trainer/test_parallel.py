"""However a run is spread over processes and micro-batches, it is the same training."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, Evaluated, TrainerFailed, TrainerFinished, TrainerStarted
from prime_train.programs import bundled
from prime_train.programs.bundled import needs
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import Host
from prime_train.trainer import build, parallel
from prime_train.trainer.device import Device
from prime_train.trainer.parallel import World
from tests import fork_server
from tests.unit.trainer import tiny


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The run trained by one process in one micro-batch per step."""
    run_dir = tiny.prepare(tmp_path_factory.mktemp("alone"), tiny.run_spec(texts))
    assert tiny.train(run_dir)[0] == 0
    return run_dir


@pytest.mark.parametrize(
    ("processes", "dp_shard", "micro_batch"),
    [(1, 1, 1), (2, 1, 2), (2, 1, 1), (4, 1, 1), (2, 2, 2), (2, 2, 1), (4, 4, 1), (4, 2, 1)],
    ids=[
        "accumulation",
        "DDP",
        "DDP and accumulation",
        "DDP of four",
        "FSDP2",
        "FSDP2 that sums once and keeps its gathers",
        "FSDP2 of four",
        "HSDP",
    ],
)
def test_loss_is_that_of_one_process(
    alone: RunDir, texts: Path, tmp_path: Path, processes: int, dp_shard: int, micro_batch: int
) -> None:
    once = (processes, dp_shard, micro_batch) == (2, 2, 1)
    run = replace(
        tiny.run_spec(texts),
        parallel=spec.Parallel(
            processes=processes, dp_shard=dp_shard, reduce="last" if once else "each", reshard=not once
        ),
        batch=spec.Batch(micro_batch=micro_batch, global_batch=4),
    )
    run_dir = tiny.prepare(tmp_path, run)
    code, output = tiny.train(run_dir, processes=processes)
    assert code == 0, output
    for name in ("loss", "grad_norm"):
        expected = [line[name] for line in tiny.metrics(alone)]
        assert [line[name] for line in tiny.metrics(run_dir)] == pytest.approx(expected, abs=1e-4)
    assert [line["tokens"] for line in tiny.metrics(run_dir)] == [line["tokens"] for line in tiny.metrics(alone)]
    expected = [event.loss for event in tiny.events(alone) if isinstance(event, Evaluated)]
    found = [event.loss for event in tiny.events(run_dir) if isinstance(event, Evaluated)]
    assert found == pytest.approx(expected, abs=1e-4)
    started = [event for event in tiny.events(run_dir) if isinstance(event, TrainerStarted)]
    assert sorted(event.rank for event in started) == list(range(processes))
    assert sum(isinstance(event, TrainerFinished) for event in tiny.events(run_dir)) == 1


def test_a_requested_checkpoint_is_saved_after_the_next_step_by_every_rank_and_changes_nothing(
    texts: Path, tmp_path: Path
) -> None:
    asked = tiny.run_spec(
        texts,
        parallel=spec.Parallel(processes=2),
        batch=spec.Batch(micro_batch=2),
        checkpoint=spec.Checkpoint(interval_steps=None, keep_last=9),
    )
    plain, saving = tiny.prepare(tmp_path / "plain", asked), tiny.prepare(tmp_path / "saving", asked)
    saving.attempt(1).mkdir(parents=True)
    saving.save_request(1).touch()
    for run_dir in (plain, saving):
        code, output = tiny.train(run_dir, processes=2)
        assert code == 0, output
    last = asked.run.max_steps
    assert [event.step for event in tiny.events(saving) if isinstance(event, CheckpointSaved)] == [1, last]
    assert not saving.save_request(1).exists()
    assert [line["loss"] for line in tiny.metrics(saving)] == [line["loss"] for line in tiny.metrics(plain)]
    # Both ranks wrote their part: the attempt after it goes on from there, on both.
    shutil.rmtree(saving.checkpoint(last))
    code, output = tiny.train(saving, number=2, resume_step=1, processes=2)
    assert code == 0, output
    assert tiny.metrics(saving)[-1]["loss"] == tiny.metrics(plain)[-1]["loss"]


def test_nothing_listens_where_others_reach_it(texts: Path, tmp_path: Path) -> None:
    """The whole of a run of two processes, as the supervisor starts it, from its first process to its last."""
    asked = tiny.run_spec(texts, parallel=spec.Parallel(processes=2), batch=spec.Batch(micro_batch=2))
    run_dir = tiny.prepare(tmp_path, asked)
    run = spec.from_json(run_dir.resolved.read_text(encoding="utf-8"))
    run_dir.attempt(1).mkdir(parents=True)
    host = Host({}, cores=2, supervisor=str(own_identity()))
    added = {
        variable.name: variable.value for variable in environment.plan(needs(run, run_dir, 1, host), run_dir, host)
    }
    launch = bundled.plan(run, run_dir, 1, 0)
    addresses: set[str] = set()

    def watched_to_its_end() -> bool:
        addresses.update(_listening(process.pid))
        return process.poll() is not None

    with open(run_dir.path / "said.txt", "wb") as said:
        process = subprocess.Popen(launch.argv, env=os.environ | added, stdout=said, stderr=said)
        try:
            tiny.until(watched_to_its_end)
        finally:
            process.kill()
    assert process.wait() == 0, (run_dir.path / "said.txt").read_text(encoding="utf-8")
    assert addresses == {"127.0.0.1"}


def _listening(pid: int) -> set[str]:
    """The addresses on which this process and those below it listen just now."""
    addresses: set[str] = set()
    with contextlib.suppress(psutil.Error):
        for process in (root := psutil.Process(pid), *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found = process.net_connections(kind="tcp")
                addresses |= {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
    return addresses


def test_fewer_processes_than_asked_for_is_a_config_error(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts, parallel=spec.Parallel(processes=2)))
    assert tiny.train(run_dir)[0] == 5
    failed = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert [event.cause_class for event in failed] == ["config"]
    assert failed[0].what == "1 training processes were started and the run needs 2"


_ONE_IS_LATE = """
import sys, torch
from prime_train.trainer import build, parallel
from prime_train.trainer import device as devices
from prime_train.trainer.device import Device
from tests.unit.trainer import tiny
world = parallel.join(2, tiny.CPU, limit_s=2.0)
if world.rank == 1:
    sys.stdin.read()
world.sum(torch.ones(1))
"""


def test_an_exchange_for_which_a_rank_comes_too_late_fails_after_its_limit(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    script = tmp_path / "one_is_late.py"
    script.write_text(_ONE_IS_LATE, encoding="utf-8")
    words = (fork_server.interpreter(), str(script))
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(
                subprocess.Popen(
                    words,
                    env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank},
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in "01"
        )
        for process in (first, second):
            stack.callback(process.kill)
        assert first.stderr is not None
        failure = first.stderr.read()
        assert first.wait(tiny.DEADLINE_S) == 1
        assert "imed out waiting 2000ms" in failure
        assert second.poll() is None


@pytest.mark.parametrize("tf32", [True, False])
def test_a_gpu_multiplies_in_tf32_if_the_config_allows_it(
    tf32: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_float32_matmul_precision()
    gpu = Device(torch.device("cuda"), "a GPU", "fp32", None)
    monkeypatch.setattr(build, "pick", lambda *_: gpu)
    run = tiny.run_spec(tmp_path, precision=spec.Precision(tf32=tf32))
    try:
        assert build.join(tiny.attempt(tiny.prepare(tmp_path / "run", run), run))[0] is gpu
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("hidden_size", "ranks", "expected"),
    [
        (0, 2, 25.0),
        (4096, 8, 25 * (1 + 12 * 4096**2 / 1e8)),
        (4096, 33, 37.5 * (1 + 12 * 4096**2 / 1e8)),
        (9999, 8, 250),
    ],
)
def test_buckets_grow_with_the_model_and_the_ring(hidden_size: int, ranks: int, expected: float) -> None:
    assert parallel.bucket_mb(hidden_size, ranks) == pytest.approx(expected)


def test_join_alone_makes_no_group() -> None:
    assert parallel.join(1, tiny.CPU) == World(rank=0, size=1)
    with pytest.raises(UserError, match="the run needs 3"):
        parallel.join(3, tiny.CPU)


def test_spread_leaves_the_model_of_a_single_process_alone() -> None:
    model = tiny.decoder()
    spread = parallel.spread(model, World(rank=0, size=1), spec.Parallel(), tiny.CPU)
    assert spread is model
    assert parallel.unwrap(spread) is model
    assert not parallel.is_sharded(spread)
