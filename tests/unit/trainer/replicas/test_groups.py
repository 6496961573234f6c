"""The processes of one replica: real ones, which end as one, and the rows that each rank takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.rank_times import RankStep, RankTimesFile, read_all_times
from prime_train.events import TrainerFailed
from prime_train.trainer.batch import IGNORED, blank_out
from prime_train.trainer.replicas.division import cut, cut_for_rank, divide
from prime_train.trainer.replicas.groups import GroupProcesses, choose_code, forget_times, start_group
from prime_train.trainer.replicas.life_sign import SignFile, keep_failure, read_sign, take_failure
from tests.unit.trainer import tiny

_WAITS = "import sys; sys.stdin.read()"


@given(st.integers(0, 200), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
def test_the_ranks_of_a_replica_take_each_row_once_in_as_many_micro_batches(
    rows: int, replicas: int, ranks: int, micro_batch: int
) -> None:
    for replica in range(replicas):
        part = divide(rows, replicas, replica)
        taken = [cut_for_rank(part, ranks, rank, micro_batch) for rank in range(ranks)]
        assert [row for own, _ in taken for piece in own for row in piece] == list(part)
        assert len({len(own) + blank for own, blank in taken}) == 1
        assert all(0 < len(piece) <= micro_batch for own, _ in taken for piece in own)


@given(st.integers(0, 50), st.integers(1, 5))
def test_a_single_rank_takes_what_its_replica_has(rows: int, micro_batch: int) -> None:
    assert cut_for_rank(range(3, 3 + rows), 1, 0, micro_batch) == (cut(range(3, 3 + rows), micro_batch), 0)


def test_a_blank_batch_has_no_label_and_the_same_tokens() -> None:
    batch = tiny.batch(1)
    blank = blank_out(batch)
    assert bool((blank.labels == IGNORED).all())
    assert torch.equal(blank.tokens, batch.tokens)
    assert (blank.labelled_tokens, batch.labelled_tokens > 0) == (0, True)


@pytest.fixture
def group() -> Iterator[GroupProcesses]:
    """Three ranks that wait for the end of their input."""
    pipe = subprocess.PIPE
    started = [subprocess.Popen([sys.executable, "-c", _WAITS], stdin=pipe) for _ in range(3)]
    yield GroupProcesses(list(started))
    for process in started:
        process.kill()
        process.communicate()


def _await_code(group: GroupProcesses) -> int:
    tiny.until(lambda: group.poll() is not None)
    return group.poll() or 0


def test_the_loss_of_one_rank_ends_the_replica_with_its_code(group: GroupProcesses) -> None:
    assert (group.poll(), group.pid) == (None, group.ranks[0].pid)
    group.ranks[1].kill()
    assert _await_code(group) == -9
    assert all(rank.poll() is not None for rank in group.ranks)


def test_a_replica_has_finished_when_all_of_its_ranks_have(group: GroupProcesses) -> None:
    for number, rank in enumerate(group.ranks):
        assert group.poll() is None
        assert isinstance(rank, subprocess.Popen)
        assert rank.stdin is not None
        rank.stdin.close()
        assert rank.wait(tiny.DEADLINE_S) == 0, number
    assert group.wait(0.0) == 0


def test_a_group_that_does_not_end_is_not_waited_for_any_longer(group: GroupProcesses) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        group.wait(0.05)


@pytest.mark.parametrize(
    ("codes", "expected"), [((), 0), ((1, -9), -9), ((1, 5), 5), ((-9, 5, 1), 5), ((1,), 1), ((-6, -9), -6)]
)
def test_the_code_of_a_replica_is_that_of_the_reason(codes: tuple[int, ...], expected: int) -> None:
    assert choose_code(codes) == expected


def test_each_rank_knows_its_place_and_its_gpu() -> None:
    seen: list[Mapping[str, str]] = []

    def start(_arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        seen.append(variables)
        return subprocess.Popen([sys.executable, "-c", ""])

    start_group(start, (), {"A": "b"}, 2, 2).wait(tiny.DEADLINE_S)
    assert [(one["RANK"], one["WORLD_SIZE"], one["LOCAL_RANK"], one["A"]) for one in seen] == [
        ("0", "2", "4", "b"),
        ("1", "2", "5", "b"),
    ]
    assert seen[0]["MASTER_ADDR"] == "127.0.0.1"
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    seen.clear()
    start_group(start, (), {}, 2, 1).wait(tiny.DEADLINE_S)
    assert seen == [{"RANK": "0", "LOCAL_RANK": "2"}]


def test_a_rank_that_does_not_start_ends_those_that_did() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(_arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        if variables["RANK"] == "1":
            raise OSError("no process is left")
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]))
        return started[0]

    with pytest.raises(OSError, match="no process"):
        start_group(start, (), {}, 0, 2)
    assert started[0].wait(tiny.DEADLINE_S) == -9


def test_the_first_failure_is_that_of_the_replica_and_a_known_cause_before_it(tmp_path: Path) -> None:
    gone = TrainerFailed(1, 0, "unknown", "RuntimeError: connection closed", "why", "fix", "where")
    first = TrainerFailed(1, 1, "unknown", "IndexError: 7", "why", "fix", "where")
    known = TrainerFailed(1, 2, "disk", "OSError: no space", "why", "fix", "where")
    keep_failure(tmp_path, 0, first)
    time.sleep(0.02)  # later by the clock of the disk, which has steps
    keep_failure(tmp_path, 0, gone)
    assert take_failure(tmp_path, 0, 3) == first
    assert take_failure(tmp_path, 0, 3) is None
    for failed in (first, gone, known):
        keep_failure(tmp_path, 0, failed)
    assert take_failure(tmp_path, 0, 3) == known


def test_rank_0_alone_writes_the_signs_of_its_replica(tmp_path: Path) -> None:
    SignFile(tmp_path, 4, rank=1).write("works", 7)
    assert read_sign(tmp_path, 4) is None
    SignFile(tmp_path, 4).write("works", 7)
    found = read_sign(tmp_path, 4)
    assert found is not None
    assert (found.stage, found.step) == ("works", 7)


def test_the_times_of_a_lost_replica_are_dropped_and_come_again(tmp_path: Path) -> None:
    folder, one = tmp_path / "times", RankStep(3, 1.0, 0.1, 0.5, 0.2)
    for rank in range(4):
        RankTimesFile(folder, rank, "host", "").add(one)
    forget_times(folder, 1, 2)
    assert sorted(read_all_times(folder, tmp_path)) == [0, 1]
    RankTimesFile(folder, 2, "host", "").add(one)
    assert sorted(read_all_times(folder, tmp_path)) == [0, 1, 2]
    forget_times(folder, 3, 2)  # which has none
