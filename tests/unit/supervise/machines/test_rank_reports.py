"""The times of ranks reach machine 0 as they are, and nothing else does."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.rank_times import RankStep, RankTimesFile, read_all_times
from prime_train.core.rundir import RunDir
from prime_train.supervise.machines.protocol import Lost, parse
from prime_train.supervise.machines.rank_reports import OwnTimes, keep_times

RANKS = range(2, 4)


def write(run_dir: RunDir, rank: int, steps: int) -> RankTimesFile:
    run_dir.attempt(1).mkdir(parents=True, exist_ok=True)
    file = RankTimesFile(run_dir.rank_times(1), rank, "node7", f"GPU-{rank}")
    for step in range(1, steps + 1):
        file.add(RankStep(step, 1.0, 0.1, 0.5, 0.25, 32.0))
    return file


def as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_the_times_arrive_as_they_were_written_and_once(tmp_path: Path) -> None:
    here, there = RunDir(tmp_path / "0"), RunDir(tmp_path / "1")
    files = [write(there, rank, 100) for rank in RANKS]
    own = OwnTimes(there, 1, range(2, 5))  # rank 4 has none yet
    for message in own.list_new():
        keep_times(here.rank_times(1), range(2, 5), parse(message))
    assert read_all_times(here.rank_times(1), here.path) == read_all_times(there.rank_times(1), there.path)
    own._sent_s = 0.0
    files[0].add(RankStep(101, 1.0, 0.1, 0.5, 0.25, 32.0))
    assert [message["rank"] for message in own.list_new()] == [2]
    assert own.list_new() == [], "it was just called"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"x" * 600, b"{" + b" " * 10_000])
def test_what_are_no_times_is_not_written(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Lost, match="no times of its ranks"):
        keep_times(tmp_path / "times", RANKS, {"kind": "times", "rank": 2, "text": as_text(content)})
    assert not list(tmp_path.rglob("*.times"))


@pytest.mark.parametrize(("rank", "named"), [(1, 1), (4, 4), (-1, 2), (2, 3)])
def test_a_machine_writes_no_times_of_another_one(tmp_path: Path, rank: int, named: int) -> None:
    there = RunDir(tmp_path / "1")
    write(there, named, 3)
    content = (there.rank_times(1) / f"rank{named}.times").read_bytes()
    with pytest.raises(Lost):
        keep_times(tmp_path / "times", RANKS, {"kind": "times", "rank": rank, "text": as_text(content)})
    assert not (tmp_path / "times").exists()


@given(text=st.one_of(st.text(max_size=40), st.binary(max_size=4000).map(as_text)), rank=st.integers())
def test_nothing_that_is_sent_is_believed(tmp_path_factory: pytest.TempPathFactory, text: str, rank: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "never" / "times"
    with pytest.raises(Lost):
        keep_times(folder, RANKS, {"kind": "times", "rank": rank, "text": text})
    assert not folder.exists()
