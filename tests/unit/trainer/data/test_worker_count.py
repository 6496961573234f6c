from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.spec import Batch
from prime_train.trainer.data import worker_count
from prime_train.trainer.data.tokenised import Made, Share
from prime_train.trainer.data.worker_count import AutoWorkers, LoaderRates, choose_workers, count_cores, most_workers
from tests.unit.trainer.data.small_runs import files, small_run

rates = st.floats(1.0, 1e9)


class Feed:
    """A trainer and workers with fixed rates, in a time of their own."""

    def __init__(self, workers: int, tokens_per_s: float, step_s: float, reading_ratio: float = 0.0) -> None:
        self.now_s = 0.0
        self.workers = workers
        self._tokens_per_s, self._step_s, self._reading_ratio = tokens_per_s, step_s, reading_ratio

    def made(self) -> Made:
        return Made(10, round(self._tokens_per_s), self._reading_ratio, 1 - self._reading_ratio)

    def clock(self) -> float:
        return self.now_s

    def train(self, auto: AutoWorkers, steps: int, calls: int = 1) -> dict[int, int]:
        """Step -> the number of workers that was chosen before it."""
        chosen = {}
        for step in range(steps):
            for _ in range(calls):
                if workers := auto.enter(self):
                    self.workers = chosen[step] = workers
                self.now_s += 3.0  # the wait for data, which is no part of the trainer's rate
                auto.pace.leave()
            self.now_s += self._step_s if step else 100.0  # the first step compiles
        return chosen


def open_auto(feed: Feed, cores: int, rows: int = 8, ranks: int = 1) -> AutoWorkers:
    """32 tokens in a row, `rows` in a step."""
    run = replace(small_run(files(Path("x"))), batch=Batch(micro_batch=2, global_batch=rows))
    auto = AutoWorkers(run, ranks, Share(0, ranks), cores)
    auto.pace.clock = feed.clock
    return auto


@given(trainer=rates, worker=rates, cores=st.integers(1, 256), trainers=st.integers(1, 8))
def test_the_workers_make_1_5_times_what_the_trainer_uses_or_all_cores_work(
    trainer: float, worker: float, cores: int, trainers: int
) -> None:
    choice = choose_workers(LoaderRates(trainer, worker), cores, trainers)
    most = most_workers(cores, trainers)
    assert 1 <= choice.workers <= most
    assert choice.workers == most or choice.workers * worker >= 1.5 * trainer
    assert choice.workers == 1 or (choice.workers - 1) * worker < 1.5 * trainer * (1 + 1e-9)
    assert ("are wanted" in choice.line) == (choice.wanted > choice.workers)


def test_a_slow_tokenizer_is_found_and_named() -> None:
    choice = choose_workers(LoaderRates(160_000, 50_000, reading_ratio=0.03), cores=3, trainers=1)
    assert (choice.workers, choice.wanted) == (2, 5)
    assert "the trainer uses 160,000 tokens/s, a worker makes 50,000" in choice.line
    assert "5 workers are wanted, and 3 cores leave room for 2" in choice.line
    assert "The tokenizer takes 97% of a worker's time" in choice.line


def test_slow_reading_is_named_with_how_to_write_the_data_again() -> None:
    line = choose_workers(LoaderRates(160_000, 50_000, reading_ratio=0.8), cores=16, trainers=8).line
    assert "16 cores for 8 trainers leave room for 1" in line
    assert "Reading the texts takes 80% of a worker's time" in line
    assert ".parquet or .jsonl files" in line


def test_tokens_from_the_cache_need_one_worker() -> None:
    assert choose_workers(LoaderRates(1e6, None), cores=64, trainers=1).workers == 1


@pytest.mark.parametrize("calls", [1, 4])
def test_the_probe_takes_2_seconds_after_the_first_step_and_step_20_is_looked_at_again(
    calls: int, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = Feed(workers=8, tokens_per_s=640, step_s=0.5)  # the trainer uses 8 x 32 tokens in half a second: 512
    auto = open_auto(feed, cores=9, rows=2 * calls if calls > 1 else 8)
    if calls == 1:
        auto.pace.calls = 1
    chosen = feed.train(auto, 40, calls)
    assert list(chosen) == [5]  # 4 steps of 0.5 s after the first one
    uses = 32 * (2 * calls if calls > 1 else 8) / 0.5
    assert chosen[5] == math.ceil(1.5 * uses / 640)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_tokenizer_that_becomes_slow_gets_more_workers_at_step_20() -> None:
    feed = Feed(workers=1, tokens_per_s=10_000, step_s=0.5)
    auto = open_auto(feed, cores=9)
    auto.pace.calls = 1
    feed.train(auto, 10)
    assert feed.workers == 1
    feed._tokens_per_s = 200
    assert feed.train(auto, 20) == {10: 4}


def test_the_trainers_of_a_machine_share_its_work() -> None:
    feed = Feed(workers=1, tokens_per_s=512, step_s=0.5)
    alone, four = open_auto(feed, cores=64), open_auto(feed, cores=64, ranks=4)
    assert alone.pace.tokens == 4 * four.pace.tokens


def test_one_core_gives_one_worker_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert open_auto(Feed(1, 1, 1), cores=1).first_workers() == 1
    assert capsys.readouterr().err == (
        "data.loader_workers = 1 (auto): 1 core for 1 trainer, so there is none for a second worker\n"
    )


def test_a_limit_of_the_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert count_cores(tmp_path / "cpu.max") == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert count_cores(tmp_path / "cpu.max") == count_cores(tmp_path / "none") >= 1
    assert worker_count.CPU_MAX.name == "cpu.max"
