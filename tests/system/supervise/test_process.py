from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from prime_train.core.process_id import Identity, identify, own_identity
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import Launch, Variable, add_reporting_guard
from prime_train.supervise.processes import process
from prime_train.supervise.processes.process import Exited, signal_tree, spawn, sweep

DEADLINE_S = 30.0


def launch(tmp_path: Path, program: str, mark: Path | None = None) -> Launch:
    variables = (Variable(environment.RUN, str(mark or tmp_path), ""), Variable("COLOUR", "blue", ""))
    return Launch("trainer", (sys.executable, "-c", program), tmp_path, tmp_path / "a" / "trainer.log", variables)


def test_an_identity_is_one_process_and_no_other() -> None:
    own = own_identity()
    assert own == identify(os.getpid())
    assert own.alive
    assert not Identity(own.pid, own.start_ticks + 1).alive
    assert str(own) == f"{own.pid}:{own.start_ticks}"


def test_a_supervisor_with_more_than_a_thousand_open_files_starts_a_program(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    try:
        with contextlib.ExitStack() as opened:
            while opened.enter_context(open(os.devnull, "rb")).fileno() < 1024:
                pass
            inbox: SimpleQueue[object] = SimpleQueue()
            spawn(launch(tmp_path, "raise SystemExit(7)"), 1, inbox)
            assert inbox.get(timeout=DEADLINE_S) == Exited(1, "trainer", 7)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    identity = identify(child.pid)
    assert identity is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.alive
    child.wait()
    assert identify(child.pid) is None


def test_a_child_writes_to_its_log_in_its_own_session_and_its_exit_is_reported(tmp_path: Path) -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    program = (
        "import os, sys; print(os.environ['COLOUR'], os.getsid(0) == os.getpid()); sys.stderr.write('err'); sys.exit(3)"
    )
    spawn(launch(tmp_path, program), 7, inbox)
    assert inbox.get(timeout=DEADLINE_S) == Exited(7, "trainer", 3)
    log = tmp_path / "a" / "trainer.log"
    assert log.read_text() == "blue True\nerr"
    assert log.stat().st_mode & 0o777 == 0o600  # it may hold secrets, because a child writes it


def test_a_program_that_does_not_exist_exits_with_127(tmp_path: Path) -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    spawn(Launch("trainer", ("/nowhere/python",), tmp_path, tmp_path / "log"), 1, inbox)
    assert inbox.get(timeout=DEADLINE_S) == Exited(1, "trainer", 127)
    assert "/nowhere/python: No such file" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("number", "exits"), [("KILL", [Exited(1, "trainer", 3)]), ("ABRT", [])])
def test_a_guard_that_was_killed_before_it_started_the_program_is_started_again(
    number: str, exits: list[Exited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill is an accident. A guard that ends by any other way would end so again."""
    guards = iter([lambda *_: ("/bin/sh", "-c", f"kill -{number} $$")])
    monkeypatch.setattr(process, "add_reporting_guard", lambda *given: next(guards, add_reporting_guard)(*given))
    inbox: SimpleQueue[object] = SimpleQueue()
    with contextlib.nullcontext() if exits else pytest.raises(ChildProcessError, match="its guard ended before"):
        spawn(launch(tmp_path, "raise SystemExit(3)"), 1, inbox)
    assert [inbox.get(timeout=DEADLINE_S) for _ in exits] == exits


def test_only_the_main_thread_may_spawn(tmp_path: Path) -> None:
    raised: list[str] = []

    def attempt() -> None:
        try:
            spawn(launch(tmp_path, "pass"), 1, SimpleQueue())
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in raised[0]


_TREE = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(grandchild.pid, flush=True)
time.sleep(600)
"""


def first_number(log: Path) -> int:
    while True:
        text = log.read_text() if log.exists() else ""
        if text.endswith("\n"):
            return int(text)


def test_a_signal_reaches_descendants_in_other_sessions(tmp_path: Path) -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    running = spawn(launch(tmp_path, _TREE), 1, inbox)
    grandchild = psutil.Process(first_number(running.log))
    signal_tree(running.identity, signal.SIGTERM)
    assert inbox.get(timeout=DEADLINE_S) == Exited(1, "trainer", -signal.SIGTERM)
    psutil.wait_procs([grandchild], timeout=DEADLINE_S)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_a_sweep_ends_the_run_and_spares_the_rest(tmp_path: Path) -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    bystander = subprocess.Popen(["sleep", "600"])
    other = subprocess.Popen(["sleep", "600"], env=os.environ | {environment.RUN: str(tmp_path / "other")})
    spared = process.list_own_children()
    running = spawn(launch(tmp_path, _TREE), 1, inbox)
    grandchild = Identity(first_number(running.log), identify_ticks(first_number(running.log)))
    os.kill(running.identity.pid, signal.SIGKILL)
    assert inbox.get(timeout=DEADLINE_S) == Exited(1, "trainer", -signal.SIGKILL)
    assert sweep(tmp_path, spared) == []
    assert not grandchild.alive
    assert bystander.poll() is None
    assert other.poll() is None
    for child in (bystander, other):
        child.kill()
        child.wait()


def test_a_sweep_spares_what_a_spared_child_starts(tmp_path: Path) -> None:
    """A test of GPUs starts two ranks: killed by the end of an attempt, they would make a healthy GPU a failed one."""
    others = process.list_own_children()
    tested = subprocess.Popen(
        ["bash", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert tested.stdout is not None
    rank, leader = identify(int(tested.stdout.readline())), identify(tested.pid)
    assert rank is not None
    assert leader is not None
    assert sweep(tmp_path, (*others, leader)) == []
    assert rank.alive
    assert sweep(tmp_path, others) == []
    assert not rank.alive


def identify_ticks(pid: int) -> int:
    found = identify(pid)
    assert found is not None
    return found.start_ticks


def test_a_signal_to_a_process_that_is_gone_reaches_no_process() -> None:
    own = own_identity()
    signal_tree(Identity(own.pid, own.start_ticks - 1), signal.SIGKILL)  # another process had this pid before
    assert own.alive


_LEAVES_AN_ENGINE = "env -i sleep 600 & sleep 600 & echo $! > {ready}; wait"


@contextlib.contextmanager
def _killed_server(run_path: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server with the mark that was killed, and its two children, one without the mark. Both write to `log`."""
    ready = run_path / "ready"
    log.parent.mkdir(parents=True)
    marked = os.environ | {environment.RUN: str(run_path)}
    with open(log, "ab") as out:
        leader = subprocess.Popen(
            ["bash", "-c", _LEAVES_AN_ENGINE.format(ready=ready)],
            env=marked,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    wait_until(lambda: ready.exists() and len(_names_in(leader.pid)) == 3 and "env" not in _names_in(leader.pid))
    left = [process for process in psutil.process_iter() if _session_of(process) == leader.pid != process.pid]
    leader.kill()
    leader.wait()
    try:
        yield leader
    finally:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


def test_a_sweep_finds_what_lost_its_mark_by_its_log(tmp_path: Path) -> None:
    """As vLLM's engine core does, which is left when its API server is killed together with the supervisor."""
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    spared = process.list_own_children()
    try:
        with _killed_server(tmp_path, tmp_path / "attempts" / "001" / "inference.log") as leader:
            assert sweep(tmp_path, spared) == []
            wait_until(lambda: not _names_in(leader.pid))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_sweep_spares_what_only_shares_a_session_with_the_run(tmp_path: Path) -> None:
    with _killed_server(tmp_path, tmp_path / "elsewhere" / "screen.log") as leader:
        assert len(_names_in(leader.pid)) == 2
        assert sweep(tmp_path, process.list_own_children()) == []
        wait_until(lambda: len(_names_in(leader.pid)) == 1)  # the one with the mark has ended


def test_a_sweep_spares_who_reads_the_log_of_the_run(tmp_path: Path) -> None:
    log = tmp_path / "attempts" / "001" / "trainer.log"
    log.parent.mkdir(parents=True)
    log.write_text("one line\n")
    with open(log, encoding="utf-8") as read:
        reader = subprocess.Popen(["sleep", "600"], stdout=read, stderr=read)
    assert not process._is_marked(psutil.Process(reader.pid), tmp_path, None)
    reader.kill()
    reader.wait()


@pytest.mark.parametrize("run", ["", "other", "run-2"])
def test_a_process_of_another_run_or_of_none_is_no_process_of_the_run(tmp_path: Path, run: str) -> None:
    """A sweep spares the children of this process by itself, so it is asked about one."""
    marked = {environment.RUN: str(tmp_path / run)} if run else {}
    with subprocess.Popen(["sleep", "600"], env=os.environ | marked) as stranger:
        try:
            assert not process._is_marked(psutil.Process(stranger.pid), tmp_path / "run", None)
        finally:
            stranger.kill()


def test_a_sweep_of_one_supervisor_spares_the_trainer_of_another(tmp_path: Path) -> None:
    """A supervisor that lost its lock while it was stopped: its successor's trainer has the same mark."""
    other = subprocess.Popen(["sleep", "600"])
    successor = Identity(other.pid, identify_ticks(other.pid))
    marked = os.environ | {environment.RUN: str(tmp_path), environment.SUPERVISOR: str(successor)}
    trainer = subprocess.Popen(["sleep", "600"], env=marked)
    mine = subprocess.Popen(["sleep", "600"], env=marked | {environment.SUPERVISOR: str(own_identity())})
    found = {one.pid for one in psutil.process_iter() if _carries(one, tmp_path, own_identity())}
    assert found == {mine.pid}
    assert {one.pid for one in psutil.process_iter() if _carries(one, tmp_path, None)} == {mine.pid, trainer.pid}
    for child in (trainer, mine, other):
        child.kill()
        child.wait()


def _carries(one: psutil.Process, run_path: Path, supervisor: Identity | None) -> bool:
    try:
        return process._is_marked(one, run_path, supervisor)
    except (psutil.Error, OSError):
        return False


_DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        out = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(out, number)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
print("begun", flush=True)
time.sleep(600)
"""

_SUPERVISOR = """
import sys, time
from pathlib import Path
from queue import SimpleQueue
from prime_train.supervise.processes import process
from prime_train.supervise.launch.program import Launch, Variable, add_reporting_guard
path = Path(sys.argv[1])
launch = Launch("trainer", (sys.executable, "-c", sys.argv[2]), path, path / "log", ())
process.become_subreaper()
running = process.spawn(launch, 1, SimpleQueue())
while "begun" not in (path / "log").read_text():
    time.sleep(0.01)
print(running.identity.pid, flush=True)
time.sleep(600)
"""


def test_a_daemon_without_the_mark_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(tmp_path), _DAEMON], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        try:
            assert supervisor.stdout is not None
            trainer = int(supervisor.stdout.readline())
            wait_until(lambda: "sleep" in [one.name() for one in _below(supervisor)])
            below = _below(supervisor)
            (daemon,) = (one for one in below if one.name() == "sleep")
            assert trainer in {one.pid for one in below}
            assert daemon.environ() == {}
            assert os.getsid(daemon.pid) != os.getsid(trainer)
        finally:
            supervisor.kill()
    wait_until(lambda: not any(_lives(one) for one in below))


def _below(supervisor: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(supervisor.pid).children(recursive=True)


def _lives(one: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    return False


def _session_of(one: psutil.Process) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(one.pid)
    return 0


def _names_in(session: int) -> list[str]:
    """The living processes of a session, by name."""
    names = []
    for member in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(member.pid) == session and member.status() != psutil.STATUS_ZOMBIE:
                names.append(member.name())
    return names


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
