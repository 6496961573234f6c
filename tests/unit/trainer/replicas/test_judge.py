"""The rows, the judgement and the signs of replicas, as values."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.replica_files import sign_path
from prime_train.events import TrainerFailed
from prime_train.trainer.replicas.division import cut, divide
from prime_train.trainer.replicas.judge import (
    HangLimits,
    SeenSteps,
    WatchedReplica,
    compute_restart_s,
    count_failures,
    find_hung,
    judge_end,
    judge_other_machine,
)
from prime_train.trainer.replicas.life_sign import (
    LifeSign,
    SignFile,
    Stage,
    keep_failure,
    read_sign,
    take_failure,
)
from prime_train.trainer.replicas.limits import FLOOR_S

LIMITS = HangLimits(startup_s=100.0, step_s=10.0, slow_s=500.0, sum_s=20.0)


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
def test_each_row_of_a_step_is_in_one_micro_batch_of_one_replica(rows: int, replicas: int, micro_batch: int) -> None:
    parts = [divide(rows, replicas, rank) for rank in range(replicas)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        pieces = cut(part, micro_batch)
        assert [row for piece in pieces for row in piece] == list(part)
        assert all(len(piece) == micro_batch for piece in pieces[:-1])
        assert all(0 < len(piece) <= micro_batch for piece in pieces)


def _watch(number: int, stage: Stage, *, step: int = 5, since_s: float = 0.0) -> WatchedReplica:
    return WatchedReplica(number, 0.0, LifeSign(stage, step, since_s, 100 + number))


def test_only_the_replica_that_computes_too_long_hangs() -> None:
    others = [_watch(0, "sums"), _watch(2, "waits")]
    assert list(find_hung([*others, _watch(1, "works")], LIMITS, SeenSteps(5), 11.0)) == [1]
    assert find_hung([*others, _watch(1, "works")], LIMITS, SeenSteps(5), 10.0) == {}


def test_a_sum_that_its_own_limit_does_not_end_hangs() -> None:
    assert find_hung([_watch(0, "sums")], LIMITS, SeenSteps(5), 30.0) == {}
    assert list(find_hung([_watch(0, "sums")], LIMITS, SeenSteps(5), 31.0)) == [0]


def test_a_sum_has_the_limit_that_its_replica_has_and_a_wide_step_more_time() -> None:
    def watch(stage: Stage, *, is_wide: bool = False) -> WatchedReplica:
        return WatchedReplica(0, 0.0, LifeSign(stage, 5, 0.0, 100, sum_limit_s=90.0, is_wide=is_wide))

    assert find_hung([watch("sums")], LIMITS, SeenSteps(5), 100.0) == {}
    assert list(find_hung([watch("sums")], LIMITS, SeenSteps(5), 101.0)) == [0]
    learned, seen = replace(LIMITS, step_s=None), SeenSteps(5, steps_s=(20.0,) * 20)
    assert list(find_hung([watch("works")], learned, seen, 61.0)) == [0]
    assert find_hung([watch("works", is_wide=True)], learned, seen, 180.0) == {}
    assert list(find_hung([watch("works", is_wide=True)], learned, seen, 181.0)) == [0]
    # A limit that a config sets stays what it is.
    assert list(find_hung([watch("works", is_wide=True)], LIMITS, SeenSteps(5), 11.0)) == [0]


def test_a_replica_that_waits_hangs_only_if_the_others_have_gone_on() -> None:
    assert find_hung([_watch(0, "waits", step=5)], LIMITS, SeenSteps(5), 1e6) == {}
    assert list(find_hung([_watch(0, "waits", step=5)], LIMITS, SeenSteps(6), 501.0)) == [0]


@pytest.mark.parametrize(("stage", "limit_s"), [("setup", 100.0), ("ready", 100.0), ("saves", 500.0)])
def test_a_start_and_a_save_have_limits_of_their_own(stage: Stage, limit_s: float) -> None:
    assert find_hung([_watch(0, stage)], LIMITS, SeenSteps(5), limit_s) == {}
    assert list(find_hung([_watch(0, stage)], LIMITS, SeenSteps(5), limit_s + 1)) == [0]


def test_a_replica_that_has_ended_or_left_does_not_hang() -> None:
    ended = replace(_watch(0, "works"), exit_code=-9)
    assert find_hung([ended, _watch(1, "left"), _watch(2, "done")], LIMITS, SeenSteps(5), 1e6) == {}


def test_a_limit_is_learned_from_the_slow_steps() -> None:
    seen, now_s = SeenSteps(), 0.0
    for step in range(1, 20):
        now_s += 40.0 if step == 15 else 1.0
        seen = seen.add(step, now_s)
    assert max(seen.steps_s) == 40.0
    learned = replace(LIMITS, step_s=None)
    assert find_hung([_watch(0, "works")], learned, seen, 120.0) == {}
    assert list(find_hung([_watch(0, "works")], learned, seen, 121.0)) == [0]
    # Before enough steps were seen, the limit is that of a start; quick steps have the floor.
    assert find_hung([_watch(0, "works")], learned, SeenSteps(), 100.0) == {}
    assert list(find_hung([_watch(0, "works")], learned, replace(seen, steps_s=(0.1,) * 20), FLOOR_S + 1)) == [0]


def test_the_attempt_is_done_with_the_leader_and_over_without_the_weights() -> None:
    seen = SeenSteps(5)
    done, left = replace(_watch(0, "done"), exit_code=0), replace(_watch(1, "left"), exit_code=0)
    lost = replace(_watch(2, "works"), exit_code=-9)
    assert judge_end([done, _watch(1, "works"), lost], seen, 0) == 0
    assert judge_end([left, _watch(1, "works"), lost], seen, 0) is None
    assert judge_end([left, _watch(0, "done")], seen, 0) is None  # its process still ends
    assert judge_end([left, lost], seen, 0) == -9
    assert judge_end([left], seen, 0) == 1  # the leader was lost before it had saved


def test_replicas_that_start_again_do_not_begin_at_the_first_step() -> None:
    lost, again = replace(_watch(0, "works"), exit_code=-9), _watch(1, "waits", step=0)
    assert judge_end([lost, again], SeenSteps(5), 0) == -9
    assert judge_end([lost, replace(again, sign=None)], SeenSteps(5), 0) == -9
    assert judge_end([lost, _watch(1, "waits", step=4)], SeenSteps(5), 0) is None
    # Nothing is lost before the first step of the attempt.
    assert judge_end([lost, again], SeenSteps(0), 0) is None
    assert judge_end([lost, replace(again, sign=None)], SeenSteps(8), 8) is None


def test_the_weights_may_be_on_another_machine() -> None:
    lost, other = replace(_watch(0, "works"), exit_code=-9), _watch(1, "sums", step=4)
    assert judge_end([lost], SeenSteps(5), 0, [other]) is None
    assert judge_end([lost], SeenSteps(5), 0, [_watch(1, "sums", step=3)]) == -9
    assert judge_end([lost], SeenSteps(5), 0, [_watch(1, "setup", step=5)]) == -9


def test_another_machine_ends_with_the_run_alone() -> None:
    lost, left = replace(_watch(2, "works"), exit_code=-9), replace(_watch(3, "left"), exit_code=0)
    assert judge_other_machine([lost, lost], SeenSteps(5)) is None
    assert judge_other_machine([left, _watch(2, "works")], SeenSteps(5)) is None
    assert judge_other_machine([left, lost], SeenSteps(5)) == 0
    failed = replace(lost, exit_code=5)
    assert (judge_other_machine([failed], SeenSteps(0)), judge_other_machine([failed], SeenSteps(5))) == (5, None)


def test_a_replica_of_the_last_round_has_the_weights() -> None:
    lost = replace(_watch(0, "works", step=8), exit_code=-9)
    for round_steps, code in ((4, None), (3, -9)):
        sign = LifeSign("waits", 4, 0.0, 101, round_steps)
        assert judge_end([lost, WatchedReplica(1, 0.0, sign)], SeenSteps(8), 0) == code


def test_the_time_of_a_round_is_that_of_its_steps() -> None:
    seen = SeenSteps()
    for number in range(1, 20):
        seen = seen.add(50 * number, 100.0 * number)
    assert set(seen.steps_s) == {2.0}


def test_a_fault_of_the_config_ends_all_replicas_only_before_the_first_step() -> None:
    failed, other = replace(_watch(0, "setup"), exit_code=5), _watch(1, "works", step=9)
    assert judge_end([failed, other], SeenSteps(8), 8) == 5
    assert judge_end([failed, other], SeenSteps(9), 8) is None


def test_a_replica_starts_again_at_once_and_later_each_time() -> None:
    assert [compute_restart_s(failures, 1.0, 60.0) for failures in (1, 2, 3, 99)] == [0.0, 1.0, 2.0, 60.0]
    assert count_failures(WatchedReplica(0, started_s=0.0, ended_s=10.0, failures=3)) == 4
    assert count_failures(WatchedReplica(0, started_s=0.0, ended_s=601.0, failures=3)) == 1


def test_a_sign_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = SignFile(tmp_path, 2)
    file.write("sums", 123_456)
    file.round_steps = 12
    file.write("works", 7, 41.5, is_wide=True)
    sign = read_sign(tmp_path, 2)
    assert sign is not None
    assert (sign.stage, sign.step, sign.pid, sign.round_steps) == ("works", 7, os.getpid(), 12)
    assert (sign.sum_limit_s, sign.is_wide) == (41.5, True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stage": "other", "step": 1, "since_s": 0, "pid": 1}'])
def test_a_file_that_is_no_sign_is_none(content: str, tmp_path: Path) -> None:
    sign_path(tmp_path, 0).write_text(content)
    assert read_sign(tmp_path, 0) is None
    assert read_sign(tmp_path, 1) is None


def test_a_failure_is_taken_once(tmp_path: Path) -> None:
    failed = TrainerFailed(1, 0, "config", "what", "why", "fix", "where")
    keep_failure(tmp_path, 1, failed)
    assert [take_failure(tmp_path, 1), take_failure(tmp_path, 1)] == [failed, None]
