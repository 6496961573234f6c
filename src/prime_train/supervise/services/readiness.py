"""Threads that wait until a service answers and until GPU memory is released. The result goes into the inbox."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import psutil

from prime_train.core.http import send_request
from prime_train.core.process_id import Identity
from prime_train.events import ServiceReady
from prime_train.facts import probe_process
from prime_train.facts.facts import NotKnown
from prime_train.supervise.launch.program import ReadyCheck

_POLL_S = 0.5
_HEALTH_S = 5.0  # for one answer of /health; while vLLM loads its model, the connection is refused at once
_LEAST_REQUEST_S = 1.0
FREED_POLL_S = 2.0
FREED_LIMIT_S = 50.0
_IDLE_BYTES = 512 * 2**20  # a driver uses less on an idle GPU. Source: nvidia-resiliency-ext, memory gate
_NVML_S = 10.0


@dataclass(frozen=True, slots=True)
class NeverReady:
    """Put into the inbox when a service will not become ready: its time is up, or it answers with a lasting error."""

    attempt: int
    role: str
    url: str
    waited_s: float
    last: str  # the last problem
    cause_class: str  # "hang": another attempt may succeed; "config", "auth", "network": it will not


class ReadinessWaiter:
    """A thread that waits for one service. After `stop` it puts nothing into the inbox."""

    def __init__(
        self, ready: ReadyCheck, role: str, attempt: int, process: Identity, inbox: SimpleQueue[object]
    ) -> None:
        self._ready = ready
        self._role = role
        self._attempt = attempt
        self._process = process
        self._inbox = inbox
        self._stopped = threading.Event()
        self._began_s = time.monotonic()
        threading.Thread(target=self._wait, name=f"ready-{role}-{attempt}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _wait(self) -> None:
        try:
            self._poll()
        except Exception as error:  # every kind, because the attempt would wait for ever if the thread ended silently
            self._give_up(f"the check failed: {type(error).__name__}: {error}", "hang")

    def _poll(self) -> None:
        last = "nothing listens there"
        while (left_s := self._ready.limit_s - self._waited_s()) > 0:
            seen = _check(self._ready, self._process, left_s)
            if self._stopped.is_set():
                return
            if seen.serves:
                waited_s = round(self._waited_s(), 3)
                self._inbox.put(ServiceReady(self._attempt, self._role, self._ready.health_url, waited_s))
                return
            last = seen.what or last
            if seen.cause_class:
                self._give_up(last, seen.cause_class)
                return
            if self._stopped.wait(_POLL_S):
                return
        self._give_up(last, "hang")

    def _give_up(self, last: str, cause_class: str) -> None:
        url = self._ready.health_url
        self._inbox.put(NeverReady(self._attempt, self._role, url, self._waited_s(), last, cause_class))

    def _waited_s(self) -> float:
        return time.monotonic() - self._began_s


@dataclass(frozen=True, slots=True)
class _CheckResult:
    """The result of one check. `cause_class` is "" if the service may still become ready."""

    what: str
    serves: bool = False
    cause_class: str = ""


def _check(ready: ReadyCheck, process: Identity, left_s: float) -> _CheckResult:
    """Health first, then a completion, because /health is 200 even if the engine behind it is dead (vllm#17972)."""
    health = send_request("GET", ready.health_url, min(_HEALTH_S, left_s))
    if health.status != 200:
        return _CheckResult(f"/health: {health.words}" if health.status else "")
    if other := _find_port_owner(process, ready.health_url):
        return _CheckResult(f"the port is held by {other}", cause_class="network")
    body = {"model": ready.model, "prompt": "a" if ready.has_tokenizer else [0], "max_tokens": 1}
    answer = send_request("POST", ready.completion_url, max(_LEAST_REQUEST_S, left_s), body)
    if answer.status == 200 and '"choices"' in answer.text:
        return _CheckResult("", serves=True)
    problem = f"a request of one token: {answer.words}"
    if answer.status in (401, 403):
        return _CheckResult(problem, cause_class="auth")
    return _CheckResult(problem, cause_class="config" if 400 <= answer.status < 500 and answer.status != 429 else "")


def _find_port_owner(process: Identity, url: str) -> str:
    """Other processes that listen on the port of the service; "" if the service does, or if that is not known."""
    port = urlsplit(url).port
    try:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listeners = {
            found.pid
            for found in psutil.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port
        }
    except (psutil.Error, OSError):
        return ""
    if None in listeners or not listeners or listeners & {member.pid for member in tree}:
        return ""
    return ", ".join(f"process {pid}{_read_name(pid)}" for pid in sorted(pid for pid in listeners if pid is not None))


def _read_name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return f" ({psutil.Process(pid).name()})"
    return ""


@dataclass(frozen=True, slots=True)
class MemoryReleased:
    """Put into the inbox at the end of the wait. `held` describes the memory that is not released."""

    held: tuple[str, ...] = ()


def read_used_bytes() -> dict[str, int]:
    """Bytes in use on each GPU by UUID, before the run starts a process.

    Empty without a driver. Takes up to 10 s with a slow driver, so it is called before the first attempt.
    """
    return {str(gpu["uuid"]): int(gpu["used_bytes"]) for gpu in _devices() if "uuid" in gpu}


def await_memory(inbox: SimpleQueue[object], before: Mapping[str, int]) -> None:
    """Wait, in a thread, until the GPUs use no more memory than before the first attempt.

    MemoryReleased comes at once without a driver, and at the latest after FREED_LIMIT_S, because only a person can end
    a process that the driver keeps alive.
    """

    def wait() -> None:
        began_s = time.monotonic()
        while True:
            left = describe_held_memory(_devices(), before)
            if not left or time.monotonic() - began_s + FREED_POLL_S > FREED_LIMIT_S:
                inbox.put(MemoryReleased(left))
                return
            time.sleep(FREED_POLL_S)  # NVML has no event for freed memory

    threading.Thread(target=wait, name="gpu-memory", daemon=True).start()


def describe_held_memory(devices: Sequence[Mapping[str, Any]], before: Mapping[str, int]) -> tuple[str, ...]:
    """Describe the GPUs that use more than 512 MiB above `before`.

    Pure; `devices` as nvml_program.py prints them. A GPU that does not answer is skipped, because the GPU watch reports
    it.
    """
    found = []
    for number, gpu in enumerate(devices):
        uuid, used = str(gpu.get("uuid", "")), gpu.get("used_bytes")
        if used is None or used <= _IDLE_BYTES + before.get(uuid, 0):
            continue
        users = ", ".join(f"process {user['pid']} {user['name']}".strip() for user in gpu.get("users", ()))
        found.append(f"GPU {number} holds {used / 2**30:.1f} GiB" + (f" ({users})" if users else ""))
    return tuple(found)


def _devices() -> list[dict[str, Any]]:
    """The devices by NVML, read in a child, because a driver that hangs then blocks only the child."""
    answer = probe_process.run_probe([sys.executable, probe_process.script("nvml_program")], _NVML_S)
    if isinstance(answer, NotKnown) or answer.code != 0:
        return []
    with contextlib.suppress(json.JSONDecodeError):
        found = json.loads(answer.out)
        return list(found.get("devices", []))
    return []
