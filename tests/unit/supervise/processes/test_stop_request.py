from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from queue import SimpleQueue

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import identify
from prime_train.core.rundir import RunDir, make_folder
from prime_train.supervise.processes import requests as requests_module
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.processes.requests import request_stop, signals_into
from tests.system.supervise.test_lock import close, start_holder


def test_the_holder_gets_sigterm(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    found = find_holder(RunDir(tmp_path))
    assert request_stop(RunDir(tmp_path)) == found
    assert process.wait(30) == -signal.SIGTERM
    close(process)


def test_a_holder_that_was_stopped_by_ctrl_z_gets_it_too(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    request_stop(RunDir(tmp_path))
    assert process.wait(30) == -signal.SIGTERM
    close(process)


def test_a_holder_that_reads_no_requests_gets_sigterm_and_the_request_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "ANSWER_S", 0.2)
    process = start_holder(tmp_path)
    requests = RunDir(tmp_path).requests(1)
    make_folder(requests)
    request_stop(RunDir(tmp_path), 1)
    assert process.wait(30) == -signal.SIGTERM
    assert list(requests.iterdir()) == []
    close(process)


def test_a_folder_of_requests_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "run")
    run_dir, elsewhere = RunDir(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    make_folder(run_dir.attempt(1))
    run_dir.requests(1).symlink_to(elsewhere)
    request_stop(run_dir, 1)
    assert process.wait(30) == -signal.SIGTERM
    assert list(elsewhere.iterdir()) == []
    close(process)


def test_a_run_without_supervisor_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no supervisor runs it"):
        request_stop(RunDir(tmp_path))


def test_a_supervisor_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("17:1 elsewhere\n")
    with pytest.raises(UserError, match="process 17 on elsewhere") as raised:
        request_stop(RunDir(tmp_path))
    assert raised.value.exit_code == ExitCode.OUT_OF_REACH


def test_a_stranger_that_the_lock_names_gets_no_signal(tmp_path: Path) -> None:
    """The lock names a live process of the user by pid and start time, and that process does not hold it."""
    stranger = subprocess.Popen(["sleep", "600"])
    (tmp_path / "lock").write_text(f"{identify(stranger.pid)} {socket.gethostname()}\n")
    with pytest.raises(UserError, match="no supervisor runs it"):
        request_stop(RunDir(tmp_path))
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_notice_is_a_stop_request_unless_it_was_ignored_before(number: signal.Signals) -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with signals_into(inbox):
            signal.raise_signal(number)
        assert inbox.get_nowait() == number
        signal.signal(number, signal.SIG_IGN)
        with signals_into(inbox):
            signal.raise_signal(number)
        assert inbox.empty()
    finally:
        signal.signal(number, before)


def test_a_process_that_only_has_the_pid_is_left_alone(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "other")
    (tmp_path / "lock").write_text(f"{process.pid}:1 {socket.gethostname()}\n")
    with pytest.raises(UserError, match="no supervisor runs it"):
        request_stop(RunDir(tmp_path))
    assert process.poll() is None
    close(process)
