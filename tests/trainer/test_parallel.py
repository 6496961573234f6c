"""However a run is spread over processes and micro-batches, it is the same training."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import Evaluated, TrainerFailed, TrainerFinished, TrainerStarted
from prime_train.programs.bundled import program as bundled
from prime_train.programs.bundled.program import needs
from prime_train.supervise.launch import environment
from prime_train.trainer import parallel
from prime_train.trainer.parallel import World
from tests.trainer import tiny


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The run trained by one process in one micro-batch per step."""
    run_dir = tiny.prepare(tmp_path_factory.mktemp("alone"), tiny.run_spec(texts))
    assert tiny.train(run_dir)[0] == 0
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "dp_shard", "micro_batch"),
    [(1, 1, 1), (2, 1, 2), (2, 1, 1), (2, 2, 2), (2, 2, 1), (4, 2, 1)],
    ids=["accumulation", "DDP", "DDP and accumulation", "FSDP2", "FSDP2 that sums once and keeps its gathers", "HSDP"],
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


@pytest.mark.slow
def test_nothing_listens_where_others_reach_it(texts: Path, tmp_path: Path) -> None:
    """The whole of a run of two processes, as the supervisor starts it, from its first process to its last."""
    asked = tiny.run_spec(texts, parallel=spec.Parallel(processes=2), batch=spec.Batch(micro_batch=2))
    run_dir = tiny.prepare(tmp_path, asked)
    run = spec.from_json(run_dir.resolved.read_text(encoding="utf-8"))
    run_dir.attempt(1).mkdir(parents=True)
    host = environment.Host({}, cores=2, supervisor=str(own_identity()))
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


@pytest.mark.slow
def test_fewer_processes_than_asked_for_is_a_config_error(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts, parallel=spec.Parallel(processes=2)))
    assert tiny.train(run_dir)[0] == 5
    failed = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert [event.cause_class for event in failed] == ["config"]
    assert failed[0].what == "1 training processes were started and the run needs 2"


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
