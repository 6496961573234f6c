"""The benchmarks and sets of a run: when they are due, and the same values for any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.events import Evaluated, Measured
from prime_train.spec import Benchmark, EvalSet, RunSpec, Source
from prime_train.trainer.evaluation.suite import is_due
from tests.unit.trainer import tiny
from tests.unit.trainer.benchmarks.questions import make_questions, write_questions


@pytest.mark.parametrize(("every", "steps"), [(1, [5, 10, 15, 20, 22]), (2, [10, 20, 22]), (3, [15, 22]), (9, [22])])
def test_a_benchmark_is_due_at_every_nth_evaluation_and_at_the_last_step(
    tmp_path: Path, every: int, steps: list[int]
) -> None:
    run = tiny.run_spec(tmp_path)
    run = replace(run, run=replace(run.run, max_steps=22))
    asked = Benchmark(kind="hellaswag", every=every)
    assert [step for step in (5, 10, 15, 20, 22) if is_due(asked, run, step)] == steps
    only_last = replace(run, eval=replace(run.eval, interval_steps=None))
    assert is_due(asked, only_last, 22)


def evaluating_run(texts: Path, root: Path) -> RunSpec:
    root.mkdir(parents=True, exist_ok=True)
    other = tiny.write_texts(root / "other", 30)
    for file in other.iterdir():
        file.write_text("a set of its own " + file.read_text()[::-1], encoding="utf-8")
    rows = [{**row, "endings": [ending[-12:] for ending in row["endings"]]} for row in make_questions(15)]
    questions = write_questions(root / "questions.jsonl", rows)
    run = tiny.run_spec(texts)
    asked = replace(
        run.eval,
        sets=(EvalSet(name="other", sources=(Source(kind="files", path=str(other)),), tokens=700),),
        benchmarks=(Benchmark(kind="hellaswag", path=str(questions)),),
    )
    return replace(run, eval=asked, run=replace(run.run, max_steps=2))


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, RunDir]:
    root = tmp_path_factory.mktemp("alone")
    run = evaluating_run(texts, root)
    run_dir = tiny.prepare(root / "run", run)
    code, output = tiny.train(run_dir)
    assert code == 0, output
    return run, run_dir


@pytest.mark.parametrize(
    ("processes", "dp_shard", "micro_batch"), [(2, 1, 2), (2, 2, 1)], ids=["DDP", "FSDP2 and accumulation"]
)
def test_two_ranks_measure_what_one_does(
    alone: tuple[RunSpec, RunDir], tmp_path: Path, processes: int, dp_shard: int, micro_batch: int
) -> None:
    run, one = alone
    run = replace(
        run,
        parallel=spec.Parallel(processes=processes, dp_shard=dp_shard),
        batch=spec.Batch(micro_batch=micro_batch, global_batch=4),
    )
    run_dir = tiny.prepare(tmp_path, run)
    code, output = tiny.train(run_dir, processes=processes)
    assert code == 0, output
    expected, found = ([event for event in tiny.events(each) if isinstance(event, Measured)] for each in (one, run_dir))
    assert [(event.name, event.metric) for event in expected] == [
        ("other", "loss"),
        ("other", "bits_per_byte"),
        ("hellaswag", "acc_norm"),
        ("hellaswag", "acc"),
    ]
    assert [replace(event, value=0.0) for event in found] == [replace(event, value=0.0) for event in expected]
    # Two steps of training come before: their sums round differently.
    assert [event.value for event in found] == pytest.approx([event.value for event in expected], rel=1e-5)
    losses = [[event.loss for event in tiny.events(each) if isinstance(event, Evaluated)] for each in (one, run_dir)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
