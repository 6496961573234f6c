"""The loop hears of a stop by file or signal, and an orphan ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.core.process_id import identify, parse_identity
from prime_train.trainer.attempt import SUPERVISOR_ENV, StopFlag, watch_supervisor
from tests.unit.trainer import tiny


def test_a_file_asks(tmp_path: Path) -> None:
    flag = StopFlag(tmp_path / "stop_requested")
    assert not flag.is_requested()
    (tmp_path / "stop_requested").touch()
    assert flag.is_requested()


def test_a_signal_asks(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            flag = StopFlag(tmp_path / "stop_requested")
            flag.listen()
            assert not flag.is_requested()
            os.kill(os.getpid(), number)
            assert flag.is_requested()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


ENDING = """
import sys, threading
from pathlib import Path
from prime_train.trainer.attempt import StopFlag
stop = StopFlag(Path(sys.argv[1]))
stop.listen()
with stop.exit_on_stop(lambda: print("last word", flush=True)):
    print("inside", flush=True)
    {inside}
print("outside", flush=True)
"""


@pytest.mark.parametrize("by", ["file", "signal"])
def test_a_stop_ends_the_process_where_nothing_is_to_be_saved(tmp_path: Path, by: str) -> None:
    program = ENDING.format(inside="while True: threading.Event().wait(0.1)")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "stop")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    if by == "file":
        (tmp_path / "stop").touch()
    else:
        process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=tiny.DEADLINE_S)
    assert (process.returncode, output) == (0, "last word\n")


@pytest.mark.parametrize(
    ("inside", "ended"),
    [
        ("pass", (0, "inside\noutside\n")),
        ("raise OSError('a peer is gone')", (1, "inside\n")),
        ("Path(sys.argv[1]).touch(); raise OSError('a peer is gone')", (0, "inside\nlast word\n")),
    ],
)
def test_an_error_is_part_of_the_stop_only_where_one_is_asked_for(
    tmp_path: Path, inside: str, ended: tuple[int, str]
) -> None:
    command = [sys.executable, "-c", ENDING.format(inside=inside), str(tmp_path / "stop")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=tiny.DEADLINE_S)
    assert (done.returncode, done.stdout) == ended
    assert ("a peer is gone" in done.stderr) == (done.returncode == 1)


def test_a_process_is_known_by_its_start() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identify(process.pid)
    assert identity is not None
    assert parse_identity(str(identity)).alive
    process.kill()
    tiny.until(lambda: not identity.alive)  # a zombie counts as gone
    process.communicate()
    assert not identity.alive
    assert identify(process.pid) is None


def test_without_a_supervisor_there_is_no_watch() -> None:
    assert SUPERVISOR_ENV not in os.environ
    watch_supervisor()


def test_an_orphan_ends_though_its_main_thread_hangs() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    program = (
        "import signal; from prime_train.trainer.attempt import watch_supervisor; watch_supervisor(); "
        "print('watching', flush=True); signal.pause()"
    )
    orphan = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {SUPERVISOR_ENV: str(identify(supervisor.pid))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert orphan.stdout is not None
    assert orphan.stdout.readline() == "watching\n"
    assert orphan.poll() is None
    supervisor.kill()
    supervisor.communicate()
    _, told = orphan.communicate(timeout=tiny.DEADLINE_S)
    assert orphan.returncode == 1
    assert "the supervisor is gone" in told
