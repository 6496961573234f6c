"""Runs `prime-train run serve.toml` as a process of its own, and looks at what it writes and starts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from prime_train.core.http import send_request
from prime_train.core.rundir import RunDir
from prime_train.events import ChildStarted, Event, ServiceReady, read
from prime_train.programs.vllm.engine_program import parse_engines
from prime_train.supervise.launch.environment import RUN
from prime_train.toml.document import to_toml

PROGRAM = Path(sys.executable).with_name("prime-train")
START_LIMIT_S = 400.0  # a start takes 20 s where two cores are free, and minutes where they are not
END_LIMIT_S = 60.0
# vLLM 0.32 counts ranks of log-probabilities with a function that torch compiles, with g++, even if a model is eager.
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Served:
    """One run under supervision."""

    run_dir: RunDir
    port: int
    supervisor: subprocess.Popen[bytes]

    def events(self, kind: type[E]) -> list[E]:
        return [record.event for record in read(self.run_dir.events) if isinstance(record.event, kind)]

    def wait_for(self, kind: type[E], attempt: int, limit_s: float = START_LIMIT_S) -> E:
        """The first event of that kind in that attempt. Fails where it does not come, or where the run has ended."""

        def found() -> E | None:
            return next((event for event in self.events(kind) if getattr(event, "attempt", 0) == attempt), None)

        def ended() -> bool:
            return self.supervisor.poll() is not None

        wait_until(lambda: found() is not None or ended(), limit_s)
        event = found()
        assert event is not None, f"no {kind.kind} in attempt {attempt}:\n{self.events_text()}"
        return event

    def events_text(self) -> str:
        """What happened, for a test that fails."""
        return "\n".join(f"{record.time_s:.1f} {record.event}" for record in read(self.run_dir.events))

    def processes(self) -> list[psutil.Process]:
        """Every process that was started for the run: vLLM's write their titles over their environments."""
        sessions = {child.pid for child in self.events(ChildStarted)}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                marked = process.environ().get(RUN) == str(self.run_dir.path)
                if (marked or os.getsid(process.pid) in sessions) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def engine_core(self) -> psutil.Process:
        (core,) = (process for process in self.processes() if process.name().startswith("VLLM::EngineCor"))
        return core

    def attempt(self) -> int:
        """The attempt that serves."""
        return max(ready.attempt for ready in self.events(ServiceReady))

    def complete(self, tokens: int = 4, limit_s: float = 60.0) -> dict[str, Any]:
        """A completion. Raises OSError where none comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit_s)
        body = {"model": "tiny", "prompt": "def", "max_tokens": tokens, "ignore_eos": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        assert response.status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def running(self) -> int:
        """Requests that the engine works on, as it counts them."""
        return sum(
            engine.running
            for engine in parse_engines(send_request("GET", f"http://127.0.0.1:{self.port}/metrics", 10.0).text)
        )

    def health(self) -> int:
        return send_request("GET", f"http://127.0.0.1:{self.port}/health", 10.0).status


def wait_until(holds: Callable[[], bool], limit_s: float) -> None:
    """Return when `holds` does, or when time is up: what follows says what is missing."""
    give_up_s = time.monotonic() + limit_s
    while not holds() and time.monotonic() < give_up_s:
        time.sleep(0.1)


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def config(python: str, model: Path, port: int, server: Mapping[str, Any] | None = None, more: str = "") -> str:
    """A run.toml that serves `model`; a value of `server` that is None is left out."""
    keys = {
        "model": str(model),
        "served_name": "tiny",
        "python": python,
        "port": port,
        "ctx_tokens": 512,
        "dtype": "float32",
        "kv_cache_gib": 0.0625,
        "enforce_eager": True,
        "ready_limit_s": START_LIMIT_S,
        **(server or {}),
    }
    told = "".join(f"{key} = {to_toml(value)}\n" for key, value in keys.items() if value is not None)
    return f'[run]\nname = "served"\nkind = "serve"\n\n[inference]\n{told}\n{more}'


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's own, EAGER and `variables`. What is on its path already stays there."""
    given = os.environ | EAGER | dict(variables)
    if "PYTHONPATH" in variables and "PYTHONPATH" in os.environ:
        given["PYTHONPATH"] = f"{variables['PYTHONPATH']}{os.pathsep}{os.environ['PYTHONPATH']}"
    return given


@contextlib.contextmanager
def started(root: Path, text: str, port: int, variables: Mapping[str, str] | None = None) -> Iterator[Served]:
    """The run of a config in the folder `root`. At the end everything it started is ended."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "serve.toml").write_text(text, encoding="utf-8")
    with open(root / "console.log", "wb") as console:
        supervisor = subprocess.Popen(
            [PROGRAM, "run", "serve.toml", "--no-validate"],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=_environment(variables or {}),
            start_new_session=True,
        )
    served = Served(RunDir((root / "runs" / "served").resolve()), port, supervisor)
    try:
        yield served
    finally:
        supervisor.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(END_LIMIT_S)
        supervisor.kill()
        supervisor.wait()
        for process in served.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
