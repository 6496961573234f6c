"""Waits, in threads, for a service to serve and for GPUs to be given back. Says so into the inbox; decides nothing."""

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

from prime_train.core.process_id import Identity
from prime_train.facts import probe_process
from prime_train.facts.facts import NotKnown
from prime_train.supervise.launch.launch import Ready
from prime_train.supervise.local_http import ask

_POLL_S = 0.5
_HEALTH_S = 5.0  # for one answer of /health; while vLLM loads its model nothing listens, and the answer is at once "no"
_LEAST_REQUEST_S = 1.0
FREED_POLL_S = 2.0
FREED_LIMIT_S = 50.0
_IDLE_BYTES = (
    512 * 2**20
)  # what a driver keeps on an idle GPU lies below it. Source: nvidia-resiliency-ext, memory gate
_NVML_S = 10.0


# --- does it serve? --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answers:
    """Put into the inbox when a service serves."""

    attempt: int
    role: str
    url: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class NeverReady:
    """Put into the inbox when a service will not serve: its time is up, or what it answers no wait can change."""

    attempt: int
    role: str
    url: str
    waited_s: float
    last: str  # what was seen last, in words
    cause_class: str  # "hang": it may be otherwise next time; "config", "auth", "network": it will not


class Waiting:
    """A thread that waits for one service. `stop` has it say nothing any more."""

    def __init__(self, ready: Ready, role: str, attempt: int, process: Identity, inbox: SimpleQueue[object]) -> None:
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
        """A thread that ended without a word would leave the attempt waiting for ever."""
        try:
            self._look_until_it_serves()
        except Exception as error:  # of whatever kind: it is told, and another attempt asks anew
            self._give_up(f"asking it failed: {type(error).__name__}: {error}", "hang")

    def _look_until_it_serves(self) -> None:
        last = "nothing listens there"
        while (left_s := self._ready.limit_s - self._waited_s()) > 0:
            seen = _look(self._ready, self._process, left_s)
            if self._stopped.is_set():
                return
            if seen.serves:
                self._inbox.put(Answers(self._attempt, self._role, self._ready.health_url, self._waited_s()))
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
class _Seen:
    """One look at a service. `cause_class` is "" where waiting on may help."""

    what: str
    serves: bool = False
    cause_class: str = ""


def _look(ready: Ready, process: Identity, left_s: float) -> _Seen:
    """Health first, then a completion: /health is 200 also where the engine behind it is dead (vllm#17972)."""
    health = ask("GET", ready.health_url, min(_HEALTH_S, left_s))
    if health.status != 200:
        return _Seen(f"/health: {health.words}" if health.status else "")
    stranger = _stranger(process, ready.health_url)
    if stranger:
        return _Seen(f"the port is held by {stranger}", cause_class="network")
    body = {"model": ready.model, "prompt": "a", "max_tokens": 1}
    answer = ask("POST", ready.completion_url, max(_LEAST_REQUEST_S, left_s), body)
    if answer.status == 200 and '"choices"' in answer.text:
        return _Seen("", serves=True)
    told = f"a request of one token: {answer.words}"
    if answer.status in (401, 403):
        return _Seen(told, cause_class="auth")
    return _Seen(told, cause_class="config" if 400 <= answer.status < 500 and answer.status != 429 else "")


def _stranger(process: Identity, url: str) -> str:
    """Who holds the port of the service where that is none of its processes; "" where it is, or cannot be told."""
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
    return ", ".join(f"process {pid}{_named(pid)}" for pid in sorted(pid for pid in listeners if pid is not None))


def _named(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return f" ({psutil.Process(pid).name()})"
    return ""


# --- is its GPU memory back? -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryBack:
    """Put into the inbox when nothing more is to be waited for. `held` says what is not given back, in words."""

    attempt: int
    waited_s: float
    held: tuple[str, ...] = ()


def used_bytes() -> dict[str, int]:
    """Bytes in use on each GPU by UUID, before anything of the run is started. Empty where there is no driver.

    Takes up to 10 s where the driver is slow: ask before the first attempt, not within one.
    """
    return {str(gpu["uuid"]): int(gpu["used_bytes"]) for gpu in _devices() if "uuid" in gpu}


def await_memory(attempt: int, inbox: SimpleQueue[object], before: Mapping[str, int], gpus: Sequence[str] = ()) -> None:
    """Wait, in a thread, until the GPUs of an attempt that has ended hold no more than before the first one.

    `gpus` are UUIDs or numbers, none = all. Without a driver MemoryBack comes at once, and after FREED_LIMIT_S in any
    case: a process that a driver keeps is for a person to end.
    """

    def wait() -> None:
        began_s = time.monotonic()
        while True:
            left = held(_devices(), before, gpus)
            waited_s = time.monotonic() - began_s
            if not left or waited_s + FREED_POLL_S > FREED_LIMIT_S:
                inbox.put(MemoryBack(attempt, waited_s, left))
                return
            time.sleep(FREED_POLL_S)  # NVML tells no event of freed memory

    threading.Thread(target=wait, name=f"memory-{attempt}", daemon=True).start()


def held(devices: Sequence[Mapping[str, Any]], before: Mapping[str, int], gpus: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that hold more than 512 MiB and more than `before`, in words. Pure; `devices` as nvml_program.py says.

    A GPU that does not answer is the GPU watch's to judge.
    """
    told = []
    for number, gpu in enumerate(devices):
        uuid, used = str(gpu.get("uuid", "")), gpu.get("used_bytes")
        asked = not gpus or str(number) in gpus or any(uuid.startswith(name) for name in gpus if not name.isdecimal())
        if used is None or not asked or used <= _IDLE_BYTES + before.get(uuid, 0):
            continue
        users = ", ".join(f"process {user['pid']} {user['name']}".strip() for user in gpu.get("users", ()))
        told.append(f"GPU {number} holds {used / 2**30:.1f} GiB" + (f" ({users})" if users else ""))
    return tuple(told)


def _devices() -> list[dict[str, Any]]:
    """What NVML says, asked in a child: a wedged driver holds the child, never this process."""
    answer = probe_process.run_probe([sys.executable, probe_process.script("nvml_program")], _NVML_S)
    if isinstance(answer, NotKnown) or answer.code != 0:
        return []
    with contextlib.suppress(json.JSONDecodeError):
        found = json.loads(answer.out)
        return list(found.get("devices", []))
    return []
