"""What follows from a slow rank: a note, an alert, a drain."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.rank_times import STEPS_KEPT, RankStep, RankTimesFile, read_all_times
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmRaised, GpuTested
from prime_train.supervise.core.fold_drains import DRAIN_EVERY_S, find_gpu_request
from prime_train.supervise.core.state import ActiveAlarm, Live, State
from prime_train.supervise.watches.straggler.detect import SlowRank
from prime_train.supervise.watches.straggler.watch import StragglerWatch, choose_answer
from prime_train.supervise.watches.watch import Alarm


@pytest.mark.parametrize(
    ("impact", "lasts_s", "is_data", "may_drain", "answer"),
    [
        (0.5, 0.0, False, True, "note"),
        (0.5, 120.0, False, True, "drain"),
        (0.5, 120.0, False, False, "note"),
        (0.5, 600.0, False, False, "alert"),
        (0.5, 600.0, True, True, "alert"),
        (0.1, 600.0, False, True, "alert"),
        (0.1, 599.0, False, True, "note"),
        (0.04, 6000.0, False, True, "note"),
    ],
)
def test_the_answer_grows_with_the_cost_and_the_time(
    impact: float, lasts_s: float, is_data: bool, may_drain: bool, answer: str
) -> None:
    assert choose_answer(SlowRank(1, impact, impact, is_data), lasts_s, may_drain=may_drain) == answer


@pytest.mark.parametrize(
    ("impact", "lasts_s", "is_data", "answer"),
    [
        (0.1, 899.0, False, "alert"),
        (0.1, 900.0, False, "test"),
        (0.1, 900.0, True, "alert"),
        (0.04, 9000.0, False, "note"),
        (0.5, 900.0, False, "drain"),
    ],
)
def test_where_a_rank_can_leave_for_it_a_test_is_before_a_drain(
    impact: float, lasts_s: float, is_data: bool, answer: str
) -> None:
    slow = SlowRank(1, impact, impact, is_data)
    assert choose_answer(slow, lasts_s, may_drain=True, may_test=True) == answer


def write_ranks(run_dir: RunDir, gpu: str) -> None:
    """Four ranks of 100 steps, of which rank 2 takes twice as long."""
    run_dir.attempt(1).mkdir(parents=True)
    for rank in range(4):
        file = RankTimesFile(run_dir.rank_times(1), rank, "node7", f"{gpu}{rank}" if gpu else "")
        for step in range(1, 101):
            file.add(RankStep(step, 1.0, 0.0, 0.9 if rank == 2 else 0.4, 0.0, 32.0))


def look(watch: StragglerWatch, now_s: float) -> tuple[Alarm, ...]:
    """After as many looks as it takes until a rank is slow: each has five steps more."""
    state, found = State(live=Live(1, last_sign_s=0.0)), tuple[Alarm, ...]()
    for _ in range(3):
        watch._history = type(watch._history)(watch._history.strikes)  # as if five steps had passed
        found = watch.look(state, now_s)
    return found


def test_the_alarm_names_rank_machine_gpu_and_cost(tmp_path: Path) -> None:
    write_ranks(RunDir(tmp_path), "GPU-")
    watch = StragglerWatch(RunDir(tmp_path), "drain")
    (alarm,) = look(watch, 1000.0)
    assert (alarm.name, alarm.subject, alarm.answer, alarm.where) == ("slow_rank", "rank 2", "note", "GPU-2")
    assert all(part in alarm.what for part in ("GPU-2 of node7", "125% slower", "100% longer"))
    (later,) = look(watch, 1130.0)
    assert later.answer == "drain"


def test_without_a_gpu_nothing_can_be_drained(tmp_path: Path) -> None:
    write_ranks(RunDir(tmp_path), "")
    watch = StragglerWatch(RunDir(tmp_path), "drain")
    look(watch, 1000.0)
    (alarm,) = look(watch, 3000.0)
    assert (alarm.answer, alarm.where) == ("alert", "")


@pytest.mark.parametrize(
    ("gpu", "fix"),
    [
        ("GPU-", "prime-train gpu drain RUN machine-1, which tests its GPUs while the run is paused"),
        ("", "top shows what else runs on node7"),
    ],
)
def test_a_rank_of_another_machine_is_named_and_a_person_drains_it(tmp_path: Path, gpu: str, fix: str) -> None:
    run_dir = RunDir(tmp_path / "RUN")
    write_ranks(run_dir, gpu)
    watch = StragglerWatch(run_dir, "drain", may_test=True, processes=2)
    look(watch, 1000.0)
    (alarm,) = look(watch, 3000.0)
    assert (alarm.subject, alarm.answer, alarm.where, alarm.fix) == ("rank 2", "alert", "", fix)


def test_another_attempt_begins_without_a_slow_rank(tmp_path: Path) -> None:
    write_ranks(RunDir(tmp_path), "GPU-")
    watch = StragglerWatch(RunDir(tmp_path), "drain")
    assert look(watch, 1000.0)
    assert watch.look(State(live=Live(2, last_sign_s=0.0)), 1001.0) == ()


def test_the_file_of_a_rank_keeps_the_latest_steps(tmp_path: Path) -> None:
    write_ranks(RunDir(tmp_path), "GPU-")
    found = read_all_times(RunDir(tmp_path).rank_times(1), tmp_path)
    assert [one.step for one in found[3].steps] == list(range(101 - STEPS_KEPT, 101))
    assert found[3].machine == "node7"


def of_alarm(where: str, **changes: object) -> State:
    alarm = AlarmRaised(1, "straggler", "slow_rank", "rank 2", "drain", "hardware", "slow", "w", "f", where, 5)
    state = State(live=Live(1, last_sign_s=0.0), alarms=(ActiveAlarm(alarm, 0.0),))
    vars(state).update(changes)
    return state


def test_the_times_of_a_replica_that_is_lost_hide_no_slow_one(tmp_path: Path) -> None:
    write_ranks(RunDir(tmp_path), "GPU-")
    lost = RankTimesFile(RunDir(tmp_path).rank_times(1), 4, "node7", "GPU-4")
    for step in range(1, 31):
        lost.add(RankStep(step, 1.0, 0.0, 0.4, 0.0, 32.0))
    (alarm,) = look(StragglerWatch(RunDir(tmp_path), "drain", may_test=True), 1000.0)
    assert alarm.where == "GPU-2"


def test_a_rank_that_starts_again_begins_its_times_again(tmp_path: Path) -> None:
    write_ranks(RunDir(tmp_path), "GPU-")
    RankTimesFile(RunDir(tmp_path).rank_times(1), 3, "node7", "GPU-9").add(RankStep(101, 1.0, 0.0, 0.4, 0.0))
    found = read_all_times(RunDir(tmp_path).rank_times(1), tmp_path)
    assert (found[3].gpu, [one.step for one in found[3].steps]) == ("GPU-9", [101])


@pytest.mark.parametrize(("passed", "is_returned"), [(True, True), (False, False)])
def test_a_gpu_that_left_for_its_test_comes_back_if_it_passes(passed: bool, is_returned: bool) -> None:
    alarm = AlarmRaised(1, "straggler", "slow_rank", "rank 2", "test", "hardware", "slow", "w", "f", "GPU-2", 5)
    state = State(live=Live(1, last_sign_s=0.0), alarms=(ActiveAlarm(alarm, 0.0),))
    request = find_gpu_request(state, 10.0)
    assert request is not None
    assert (request.id, request.body["command"]) == ("test-straggler-GPU-2-0", "drain")
    state = State(left_out=("GPU-2",), gpu_tests=(GpuTested(request.id, "GPU-2", passed, "", 1.0),))
    back = find_gpu_request(state, 20.0)
    assert (back is not None) == is_returned
    if back is not None:
        assert (back.id, back.body["command"]) == ("return-straggler-GPU-2-0", "return")


def test_a_drain_is_requested_once_and_not_soon_after_another() -> None:
    request = find_gpu_request(of_alarm("GPU-2"), 10.0)
    assert request is not None
    assert request.body["gpus"] == ["GPU-2"]
    assert find_gpu_request(of_alarm("GPU-2", answered=(request.id,)), 10.0) is None
    assert find_gpu_request(of_alarm("GPU-2", left_out=("GPU-2",)), 10.0) is None
    assert find_gpu_request(of_alarm("GPU-2", drained_s=10.0), 9.0 + DRAIN_EVERY_S) is None
    assert find_gpu_request(of_alarm("GPU-2", drained_s=10.0), 11.0 + DRAIN_EVERY_S) is not None
    assert find_gpu_request(of_alarm("GPU-2", stop_requested_s=1.0), 10.0) is None
    assert find_gpu_request(of_alarm("", live=None), 10.0) is None
    assert find_gpu_request(of_alarm(""), 10.0) is None
