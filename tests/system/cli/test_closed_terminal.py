"""A terminal that is closed asks the run to stop; it does not take its checkpoint or its exit code away."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.views.run.status import fold_events
from tests.unit.cli import small

DEADLINE_S = 120.0
_ENDLESS = (("max_steps = 12", "max_steps = 1000000"), ("interval_steps = 4", "interval_steps = 100000"))


@pytest.mark.usefixtures("forked_trainers")
def test_closing_the_terminal_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    small.write(tmp_path)
    config = tmp_path / "run.toml"
    for short, endless in _ENDLESS:
        config.write_text(config.read_text(encoding="utf-8").replace(short, endless), encoding="utf-8")
    ours, its = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", _LEADS_THE_TERMINAL, "run", "run.toml", "--no-validate"],
        cwd=tmp_path,
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"TERM": "xterm"},
        start_new_session=True,
    )
    os.close(its)
    try:
        run_dir = RunDir(tmp_path / "runs" / "small")
        deadline_s = time.monotonic() + DEADLINE_S
        while (state := fold_events(run_dir)).step < 5 and time.monotonic() < deadline_s and run.poll() is None:
            os.read(ours, 65536)  # else the terminal is full, and the run waits to be read
        assert state.step >= 5
        os.close(ours)
        assert run.wait(DEADLINE_S) == ExitCode.RESUMABLE
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    state = fold_events(run_dir)
    assert (state.stop_by, state.newest_complete) == ("SIGHUP", state.step)


_LEADS_THE_TERMINAL = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from prime_train.cli.entry import main
main()
"""
