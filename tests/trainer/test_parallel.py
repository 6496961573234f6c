"""However a run is spread over processes and micro-batches, it is the same training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.errors import UserError
from prime_train.events import Evaluated, TrainerFailed, TrainerFinished, TrainerStarted
from prime_train.rundir import RunDir
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
    ids=["accumulation", "DDP", "DDP and accumulation", "FSDP2", "FSDP2 and accumulation", "HSDP"],
)
def test_loss_is_that_of_one_process(
    alone: RunDir, texts: Path, tmp_path: Path, processes: int, dp_shard: int, micro_batch: int
) -> None:
    run = replace(
        tiny.run_spec(texts),
        parallel=spec.Parallel(processes=processes, dp_shard=dp_shard),
        batch=spec.Batch(micro_batch=micro_batch, global_batch=4),
        # As much held-out text as the single process looks at.
        eval=replace(tiny.run_spec(texts).eval, batches=3 * 4 // micro_batch),
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
def test_fewer_processes_than_asked_for_is_a_config_error(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path, tiny.run_spec(texts, parallel=spec.Parallel(processes=2)))
    assert tiny.train(run_dir)[0] == 5
    failed = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert [event.cause_class for event in failed] == ["config"]
    assert failed[0].what == "1 training processes were started and the run asks for 2"


def test_join_alone_makes_no_group() -> None:
    assert parallel.join(1, tiny.CPU) == World(rank=0, size=1)
    with pytest.raises(UserError, match="the run asks for 3"):
        parallel.join(3, tiny.CPU)


def test_spread_leaves_the_model_of_a_single_process_alone() -> None:
    model = tiny.decoder()
    spread = parallel.spread(model, World(rank=0, size=1), spec.Parallel(), tiny.CPU)
    assert spread is model
    assert parallel.bare(spread) is model
    assert not parallel.sharded(spread)
