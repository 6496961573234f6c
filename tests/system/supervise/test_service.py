from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from prime_train.core.process_id import Identity, identify, own_identity
from prime_train.events import ServiceReady
from prime_train.supervise.launch.program import ReadyCheck
from prime_train.supervise.services import readiness as service
from prime_train.supervise.services.readiness import MemoryReleased, NeverReady, ReadinessWaiter

FAKE_NVML = Path(__file__).parents[2] / "fakes" / "nvml.c"
ANSWER_S = 30.0  # for what must come at all
GIB = 2**30


class Server(ThreadingHTTPServer):
    """Answers /health and /v1/completions as configured, and keeps the requests."""

    def __init__(self, health: int = 200, completion: tuple[int, str] = (200, '{"choices": []}')) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.health = health
        self.completion = completion
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.looks = 0

    def ready(self, limit_s: float = ANSWER_S) -> ReadyCheck:
        return ready_at(self.server_address[1], limit_s)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.looks += 1
        self._answer(self.server.health, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        self._answer(*self.server.completion)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ready_at(port: int, limit_s: float) -> ReadyCheck:
    return ReadyCheck(f"http://127.0.0.1:{port}/health", f"http://127.0.0.1:{port}/v1/completions", "tiny", limit_s)


def outcome(ready: ReadyCheck, process: Identity | None = None) -> object:
    inbox: SimpleQueue[object] = SimpleQueue()
    ReadinessWaiter(ready, "inference", 3, process or own_identity(), inbox)
    return inbox.get(timeout=ANSWER_S)


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- ready ---------------------------------------------------------------------------------------


def test_a_server_is_ready_when_a_completion_of_one_token_comes_back() -> None:
    with serving(Server()) as server:
        match outcome(server.ready()):
            case ServiceReady(attempt=3, role="inference", url=url, waited_s=waited_s):
                assert url == server.ready().health_url
                assert 0 <= waited_s < ANSWER_S
            case other:
                pytest.fail(f"{other}")
    assert server.asked == [("/v1/completions", None, {"model": "tiny", "prompt": "a", "max_tokens": 1})]


def test_good_health_alone_is_not_enough() -> None:
    with serving(Server(completion=(500, "EngineCore encountered\nan issue"))) as server:
        never = outcome(server.ready(limit_s=1.2))
    assert isinstance(never, NeverReady)
    assert (never.cause_class, never.attempt) == ("hang", 3)
    assert never.last == "a request of one token: 500 EngineCore encountered an issue"
    assert server.looks > 1


def test_a_server_that_becomes_well_is_waited_for() -> None:
    server = Server(health=503)
    with serving(server):
        inbox: SimpleQueue[object] = SimpleQueue()
        ReadinessWaiter(server.ready(), "inference", 1, own_identity(), inbox)
        while server.looks < 2:
            threading.Event().wait(0.01)
        with pytest.raises(Empty):
            inbox.get_nowait()
        server.health = 200
        assert isinstance(inbox.get(timeout=ANSWER_S), ServiceReady)


def test_what_no_wait_can_change_ends_it_at_once() -> None:
    with serving(Server(completion=(404, '{"message": "The model `tiny` does not exist."}'))) as server:
        never = outcome(server.ready())
    assert isinstance(never, NeverReady)
    assert never.cause_class == "config"
    assert "The model `tiny` does not exist" in never.last


def test_a_key_is_taken_from_the_environment_and_sent_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-secret-key")
    with serving(Server()) as server:
        assert isinstance(outcome(server.ready()), ServiceReady)
    assert server.asked[0][1] == "Bearer a-secret-key"
    assert "a-secret-key" not in f"{server.asked[0][2]}"


def test_a_wrong_key_is_reported_as_such() -> None:
    with serving(Server(completion=(401, "Unauthorized"))) as server:
        never = outcome(server.ready())
    assert isinstance(never, NeverReady)
    assert never.cause_class == "auth"


def test_where_nothing_listens_the_limit_ends_the_wait() -> None:
    never = outcome(ready_at(unused_port(), 0.6))
    assert isinstance(never, NeverReady)
    assert (never.last, never.cause_class) == ("nothing listens there", "hang")


def test_one_that_is_stopped_states_nothing_any_more() -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    server = Server(health=503)
    with serving(server):
        waiting = ReadinessWaiter(server.ready(), "inference", 1, own_identity(), inbox)
        waiting.stop()
        server.health = 200
        (thread,) = (t for t in threading.enumerate() if t.name == "ready-inference-1")
        thread.join(ANSWER_S)
        assert not thread.is_alive()
    with pytest.raises(Empty):
        inbox.get_nowait()


def test_an_answer_of_another_process_on_the_port_is_not_ours() -> None:
    """The port was taken before vLLM could have it: another server's good health must not pass for ours."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = identify(child.pid)
        assert found is not None
        with serving(Server()) as server:
            never = outcome(server.ready(), found)
        assert isinstance(never, NeverReady)
        assert never.cause_class == "network"
        assert f"the port is held by process {os.getpid()}" in never.last
        assert server.asked == []
    finally:
        child.communicate(b"\n")


# --- memory --------------------------------------------------------------------------------------


def gpu(uuid: str, used_gib: float, *users: str) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "used_bytes": int(used_gib * GIB),
        "users": [{"pid": 7, "name": name} for name in users],
    }


def test_memory_is_held_above_what_an_idle_gpu_and_others_take() -> None:
    gpus = [gpu("GPU-a", 0.4), gpu("GPU-b", 20.0, "VLLM::Worker"), gpu("GPU-c", 8.0)]
    worker = "GPU 1 holds 20.0 GiB (process 7 VLLM::Worker)"
    assert service.describe_held_memory(gpus, {"GPU-c": 8 * GIB}) == (worker,)
    assert service.describe_held_memory(gpus, {}) == (worker, "GPU 2 holds 8.0 GiB")


def test_a_gpu_that_does_not_answer_is_not_waited_for() -> None:
    assert service.describe_held_memory([{"fault": "GPU is lost"}], {}) == ()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build the stand-in for NVML with")
def test_memory_that_a_process_gives_back_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, state = tmp_path / "libnvidia-ml.so.1", tmp_path / "state"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, FAKE_NVML], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML", str(state))
    state.write_text(f"used {GIB}\n")
    before = service.read_used_bytes()
    assert set(before.values()) == {GIB}  # used by another program
    state.write_text(f"used {40 * GIB}\n")
    inbox: SimpleQueue[object] = SimpleQueue()
    service.await_memory(inbox, before)
    with pytest.raises(Empty):
        inbox.get(timeout=service.FREED_POLL_S + 1.0)
    state.write_text(f"used {GIB}\n")
    back = inbox.get(timeout=ANSWER_S)
    assert isinstance(back, MemoryReleased)
    assert back.held == ()


def test_without_a_driver_nothing_is_waited_for() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    inbox: SimpleQueue[object] = SimpleQueue()
    service.await_memory(inbox, service.read_used_bytes())
    back = inbox.get(timeout=ANSWER_S)
    assert isinstance(back, MemoryReleased)
    assert back.held == ()
