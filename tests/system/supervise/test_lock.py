from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.checkpoints import in_use
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import own_identity, own_mark
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import find_holder, hold_run

_HOLD = """
import sys
from pathlib import Path
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import hold_run
with hold_run(RunDir(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def close(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def test_the_lock_names_its_holder_and_is_free_afterwards(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "a")
    assert find_holder(run_dir) is None
    with hold_run(run_dir):
        found = find_holder(run_dir)
        assert found is not None
        assert (found.identity, found.host, found.here) == (own_identity(), socket.gethostname(), True)
    assert find_holder(run_dir) is None


def test_what_is_refused_at_once_leaves_no_directory(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "a")
    with pytest.raises(ValueError, match="refused"), hold_run(run_dir):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_there_or_is_used_stays(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "a")
    with hold_run(run_dir):
        run_dir.config.write_text("")
    run_dir.config.unlink()
    with hold_run(run_dir):
        pass
    assert [path.name for path in run_dir.path.iterdir()] == ["lock"]


def test_a_held_run_is_an_error_that_states_who_and_how_to_end_it(tmp_path: Path) -> None:
    first = start_holder(tmp_path)
    with pytest.raises(UserError, match=f"process {first.pid}") as raised, hold_run(RunDir(tmp_path)):
        pass
    assert raised.value.exit_code == ExitCode.USAGE
    assert f"prime-train stop {tmp_path.name}" in raised.value.fix
    close(first)


def test_a_lock_that_was_deleted_is_taken_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with hold_run(run_dir) as lock:
        run_dir.lock.unlink()
        lock.keep()
        lock.keep()
        found = find_holder(run_dir)
        assert found is not None
        assert found.identity == own_identity()
        with pytest.raises(UserError, match="the run is held by process"), hold_run(run_dir):
            pass
    assert find_holder(run_dir) is None


def test_who_lost_its_lock_to_another_gives_way(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with hold_run(run_dir) as lock:
        run_dir.lock.unlink()
        other = start_holder(tmp_path)
        with pytest.raises(UserError, match=f"process {other.pid}"):
            lock.keep()
    assert find_holder(run_dir) is not None
    close(other)


def test_no_directory_comes_back_for_its_lock(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "a")
    with hold_run(run_dir) as lock:
        run_dir.lock.unlink()
        run_dir.path.rmdir()
        lock.keep()
        assert not run_dir.path.exists()


def test_kill_9_of_the_holder_frees_the_run(tmp_path: Path) -> None:
    first = start_holder(tmp_path)
    first.kill()
    first.wait()
    assert find_holder(RunDir(tmp_path)) is None
    with hold_run(RunDir(tmp_path)):
        assert find_holder(RunDir(tmp_path)) is not None
    close(first)


def test_the_lock_does_not_leak_into_children(tmp_path: Path) -> None:
    with hold_run(RunDir(tmp_path)):
        listed = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
        ).stdout
    assert "lock" not in listed


def test_a_holder_on_another_machine_is_believed(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1:1 elsewhere\n")
    found = find_holder(RunDir(tmp_path))
    assert found is not None
    assert not found.here


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("a year of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(target)
    with pytest.raises(UserError, match="the lock is a symbolic link"), hold_run(RunDir(tmp_path / "run")):
        pass
    assert find_holder(RunDir(tmp_path / "run")) is None
    assert target.read_text() == "a year of work"


def test_a_lock_that_is_a_pipe_is_refused_and_never_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert find_holder(RunDir(tmp_path)) is None
    with pytest.raises(UserError, match="no regular file"), hold_run(RunDir(tmp_path)):
        pass


def test_a_live_process_that_does_not_hold_the_lock_is_no_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(own_mark())
    assert find_holder(RunDir(tmp_path)) is None
    with open(tmp_path / "lock", encoding="utf-8"):
        assert find_holder(RunDir(tmp_path)) is not None


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3", "x:y z", "4194305:1 "])
def test_a_text_that_names_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert find_holder(RunDir(tmp_path)) is None


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), hold_run(RunDir(tmp_path / "file" / "a")):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    with pytest.raises(UserError, match="Permission denied"), hold_run(RunDir(tmp_path / "runs" / "a")):
        pass


def test_a_killed_supervisors_temporary_file_goes_with_the_next_lock(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    left = tmp_path / f".resolved.json.{ended.pid}.tmp"
    left.touch()
    with hold_run(RunDir(tmp_path)):
        assert not left.exists()


def test_the_mark_of_a_killed_process_goes_with_the_lock_and_others_stay(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    folder = run_dir.checkpoints / "step_10"
    folder.mkdir(parents=True)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    dead, elsewhere, linked = folder / "IN_USE.1", folder / "IN_USE.copy", run_dir.checkpoints / "step_20"
    elsewhere.write_text("1:1 another-host")
    outside = tmp_path / "archive"
    outside.mkdir()
    (outside / "IN_USE.1").write_text(f"{ended.pid}:1 {socket.gethostname()}")
    linked.symlink_to(outside)
    with hold_run(run_dir):
        dead.write_text(f"{ended.pid}:1 {socket.gethostname()}")
        with in_use.using(folder):
            in_use.remove_dead(run_dir.checkpoints)
            assert in_use.marked_by(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["IN_USE.copy"]
    assert (outside / "IN_USE.1").exists()
