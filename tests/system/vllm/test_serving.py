"""A real server finds its port taken, dies and hangs while it serves: found, named, and started anew.

The tests of this file share one run and follow each other: each leaves it serving. test_rl_run.py kills an engine core.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import AlarmRaised, AttemptEnded, ChildStarted, RunClosed, ServiceReady
from tests.system.vllm.serving import END_LIMIT_S, START_LIMIT_S, Served, config, started, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

STILL_LIMIT_S = 300.0  # the watch waits for a minute of silence


@pytest.fixture(scope="module")
def thief() -> Iterator[socket.socket]:
    """Listens where the server is to listen."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


@pytest.fixture(scope="module")
def served(
    python: str, model: Path, thief: socket.socket, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    port = int(thief.getsockname()[1])
    text = config(python, model, port, more="[prime_train.restart]\nmax_fruitless_attempts = 10\nbackoff_s = 0.1\n")
    with started(tmp_path_factory.mktemp("serving"), text, port) as run:
        yield run


def test_a_port_that_was_taken_is_named_and_served_on_once_it_is_free(served: Served, thief: socket.socket) -> None:
    ended = served.wait_for(AttemptEnded, 1)
    assert (ended.outcome, ended.cause_id) == ("failed", "TORCH003"), served.events_text()
    thief.close()
    served.wait_for(ServiceReady, 2)
    assert served.complete()["choices"]


def test_it_serves(served: Served) -> None:
    assert served.wait_for(ServiceReady, served.attempt()).role == "inference"
    assert served.complete(tokens=4)["usage"]["completion_tokens"] == 4
    assert [child.role for child in served.events(ChildStarted)] == ["inference"] * served.attempt()


def test_a_server_whose_processes_are_all_killed_at_once_is_started_again(served: Served) -> None:
    attempt = served.attempt()
    for process in served.processes():
        with contextlib.suppress(psutil.Error):
            process.kill()
    ended = served.wait_for(AttemptEnded, attempt, END_LIMIT_S)
    assert (ended.outcome, ended.returncode, ended.cause_class) == ("failed", -signal.SIGKILL, "signal"), (
        served.events_text()
    )
    served.wait_for(ServiceReady, attempt + 1)
    assert served.complete()["choices"]


def test_an_engine_that_stands_still_behind_good_health_is_found_by_its_counters(served: Served) -> None:
    attempt = served.attempt()
    asking = [threading.Thread(target=_ask, args=(served,), daemon=True) for _ in range(2)]
    for thread in asking:
        thread.start()
    core = served.engine_core()
    wait_until(lambda: served.running() > 0, END_LIMIT_S)
    core.suspend()
    assert served.health() == 200
    wait_until(lambda: any(alarm.watch == "engine" for alarm in served.events(AlarmRaised)), STILL_LIMIT_S)
    (alarm,) = (alarm for alarm in served.events(AlarmRaised) if alarm.watch == "engine")
    assert (alarm.name, alarm.answer) == ("engine_still", "restart")
    assert "/health still answers 200" in alarm.what
    ended = served.wait_for(AttemptEnded, attempt, END_LIMIT_S)
    assert (ended.cause_class, ended.cause_id) == ("hang", "engine_still"), served.events_text()
    assert not _lives(core)
    served.wait_for(ServiceReady, attempt + 1)
    assert served.complete()["choices"]


def _ask(served: Served) -> None:
    with contextlib.suppress(OSError, AssertionError):  # the server is ended below it
        served.complete(tokens=500, limit_s=START_LIMIT_S)


def test_a_killed_supervisor_takes_the_whole_server_along_and_the_next_one_serves(served: Served) -> None:
    """An engine core by itself knows nothing of the end of its API server, and goes on."""
    attempt = served.attempt()
    core = served.engine_core()
    served.supervisor.kill()
    served.supervisor.wait()
    wait_until(lambda: not served.processes(), END_LIMIT_S)
    assert served.processes() == []
    assert not _lives(core)
    root = served.run_dir.path.parents[1]
    with started(root, (root / "serve.toml").read_text(encoding="utf-8"), served.port) as next_one:
        next_one.wait_for(ServiceReady, attempt + 1)
        assert next_one.complete()["choices"]
        _stop(next_one)


def _stop(served: Served) -> None:
    """Asked to end, it leaves no process, no port and no shared memory."""
    begun = served.processes()
    assert len(begun) >= 3  # the API server, the engine core, a worker
    served.supervisor.send_signal(signal.SIGTERM)
    assert served.supervisor.wait(END_LIMIT_S) == ExitCode.RESUMABLE
    assert served.processes() == []
    assert not any(_lives(process) for process in begun)
    with pytest.raises(OSError, match="refused"):
        served.complete()
    assert served.events(RunClosed)[-1].state == "stopped"
    assert _shared_memory(begun) == []


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _shared_memory(owners: list[psutil.Process]) -> list[str]:
    """Files of vLLM's processes in /dev/shm: what a killed server leaves takes memory from the next."""
    pids = {str(owner.pid) for owner in owners}
    return [path.name for path in Path("/dev/shm").glob("*") if any(pid in path.name.split("_") for pid in pids)]
