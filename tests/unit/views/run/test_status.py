import os
import signal
from pathlib import Path

from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmRaised, BatchShrunk, ChildStarted, GpuLeftOut, LaunchAsked, RunClosed, RunOpened
from prime_train.supervise.core.fold import fold_all
from prime_train.supervise.processes.lock import hold_run
from prime_train.views.run import status
from prime_train.views.run.status import ChildAlive, Status
from prime_train.views.run.status_document import as_lines, as_rows, status_document
from tests.golden import same_as_golden
from tests.system.supervise.test_lock import close, start_holder
from tests.unit.views.written_runs import (
    BEGAN_S,
    DEATH,
    FIRST_ATTEMPT,
    SECOND_ATTEMPT,
    WHOLE_LIFE,
    Timeline,
    records,
    write_checkpoint,
    write_run,
)


def _status(timeline: Timeline, *, supervised: bool, after_s: float) -> Status:
    state = fold_all(records(timeline))
    live = state.live.children if state.live else ()
    return Status(
        path=Path("/runs/small"),
        state=state,
        supervised=supervised,
        children=tuple(ChildAlive(child.role, child.pid, supervised) for child in live),
        newest_complete=50,
        free_gib=77.04,
        now_s=BEGAN_S + after_s,
    )


def test_json_of_a_run_in_its_second_attempt() -> None:
    timeline = (*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT[:-1])
    same_as_golden("status_running.json", status_document(_status(timeline, supervised=True, after_s=20.0)))


def test_json_of_a_finished_run() -> None:
    same_as_golden("status_finished.json", status_document(_status(WHOLE_LIFE, supervised=False, after_s=100.0)))


def test_json_of_a_run_whose_supervisor_died() -> None:
    same_as_golden("status_died.json", status_document(_status(FIRST_ATTEMPT, supervised=False, after_s=100.0)))


def test_a_run_that_was_stopped_or_died_is_resumable_and_one_that_ended_is_not() -> None:
    stopped = (*FIRST_ATTEMPT, (11.0, "supervisor", RunClosed("stopped", 75, "SIGINT")))
    failed = (*FIRST_ATTEMPT, (11.0, "supervisor", RunClosed("failed", 6, "3 attempts")))
    assert _status(stopped, supervised=False, after_s=20.0).resumable
    assert _status(FIRST_ATTEMPT, supervised=False, after_s=20.0).resumable
    assert not _status(failed, supervised=False, after_s=20.0).resumable
    assert not _status(WHOLE_LIFE, supervised=False, after_s=30.0).resumable


def test_between_attempts_the_run_is_recovering_and_names_the_cause() -> None:
    found = _status((*FIRST_ATTEMPT, *DEATH), supervised=True, after_s=12.5)
    document = status_document(found)
    assert document["state"] == "recovering"
    assert document["cause"]["class"] == "signal"
    assert ("last failure", "attempt 1 at step 60: killed by signal 9 (SIGKILL)") in as_lines(status_document(found))


def test_read_status_reads_processes_the_lock_and_the_disk(tmp_path: Path) -> None:
    own = own_identity()
    timeline = (
        (0.0, "supervisor", RunOpened("small", os.getpid(), 100, "0.1.0")),
        (0.1, "supervisor", LaunchAsked(1, 0)),
        (0.2, "supervisor", ChildStarted(1, "trainer", own.pid, own.start_ticks, "/nowhere")),
        (0.3, "supervisor", ChildStarted(1, "reader", own.pid, own.start_ticks + 1, "/nowhere")),
    )
    run_dir = write_run(tmp_path / "runs" / "small", timeline)
    write_checkpoint(run_dir, 10)
    write_checkpoint(run_dir, 20, complete=False)
    with hold_run(run_dir):
        found = status.read_status(run_dir, BEGAN_S + 1)
    assert found.word == "starting"
    assert found.children == (ChildAlive("trainer", own.pid, True), ChildAlive("reader", own.pid, False))
    assert found.newest_complete == 10
    assert found.free_gib
    assert status.read_status(run_dir, BEGAN_S + 1).word == "died"


def test_a_supervisor_stopped_by_ctrl_z_is_reported(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    write_run(tmp_path, ((0.0, "supervisor", RunOpened("small", process.pid, 100, "0.1.0")),))
    lines = dict(as_lines(status_document(status.read_status(RunDir(tmp_path), BEGAN_S + 1))))
    assert lines["supervisor"] == f"pid {process.pid}"
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    lines = dict(as_lines(status_document(status.read_status(RunDir(tmp_path), BEGAN_S + 1))))
    close(process)
    assert f"kill -CONT {process.pid}" in lines["supervisor"]


def test_a_directory_without_events_is_a_run_that_no_supervisor_opened(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "empty")
    run_dir.events.mkdir(parents=True)
    found = status.read_status(run_dir, BEGAN_S)
    assert found.name == "empty"
    assert found.silent_s is None
    assert dict(as_lines(status_document(found)))["state"].startswith("died: no supervisor opened it")
    assert as_rows([status_document(found)])[0][:2] == ("empty", "died")


def test_changed_settings_are_shown() -> None:
    lost = GpuLeftOut("GPU-1", "2 attempts were ended for it")
    gone = AlarmRaised(1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "it is lost", "", "", "GPU-1", 60)
    changed = ((12.1, "supervisor", BatchShrunk(1, 4)), (12.2, "supervisor", lost))
    found = _status(
        (*FIRST_ATTEMPT, (11.0, "supervisor", gone), *DEATH, *changed, *SECOND_ATTEMPT), supervised=True, after_s=30.0
    )
    document = status_document(found)
    assert document["micro_batch"] == 4
    found_gpu = {"uuid": "GPU-1", "attempts_ended": [1], "left_out": True, "test": None, "stage": "condemned"}
    assert document["gpus"] == [found_gpu]
    assert {"micro-batch", "left out"} <= {label for label, _ in as_lines(status_document(found))}


def test_events_that_cannot_be_used_are_noted(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, WHOLE_LIFE)
    path = run_dir.events / "supervisor.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((*lines[:2], *lines[3:])))
    noted = dict(as_lines(status_document(status.read_status(run_dir, BEGAN_S))))["events"]
    assert noted == "some cannot be used: supervisor.jsonl: 1 missing record"
