from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.lock import find_holder
from prime_train.supervise.stop_request import request_stop
from tests.supervise.test_lock import close, start_holder


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


def test_a_run_without_supervisor_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no supervisor runs it"):
        request_stop(RunDir(tmp_path))


def test_a_supervisor_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("17:1 elsewhere\n")
    with pytest.raises(UserError, match="process 17 on elsewhere") as raised:
        request_stop(RunDir(tmp_path))
    assert raised.value.exit_code == ExitCode.OUT_OF_REACH


def test_a_process_that_only_has_the_pid_is_left_alone(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "other")
    (tmp_path / "lock").write_text(f"{process.pid}:1 {socket.gethostname()}\n")
    with pytest.raises(UserError, match="no supervisor runs it"):
        request_stop(RunDir(tmp_path))
    assert process.poll() is None
    close(process)
