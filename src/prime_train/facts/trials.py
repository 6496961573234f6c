"""Tries once what the run will start, and ends it: vLLM with dummy weights, tasksets, CUDA. Finds busy ports.

Runs the code of the tasksets, in their interpreters. Their output is read and not shown.
"""

from __future__ import annotations

import errno
import io
import math
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from prime_train.core.errors import UserError
from prime_train.core.python_child import SAFE_PATH
from prime_train.environments.child import OpeningFailed
from prime_train.environments.environment import EnvironmentFailed, Message
from prime_train.environments.verifiers import Taskset, advise, failed_place, start_taskset
from prime_train.facts.facts import EngineStart, NotKnown, TasksetTrial
from prime_train.facts.machine import BusyPort, CudaContext
from prime_train.facts.probe_process import NoAnswer, kill_session, run_probe
from prime_train.spec import RunSpec

_ANSWER = "0"  # an ordinary answer: a reward may refuse an empty one
_NOT_INSTALLED = ("verifiers", "python", "id")  # the packages of the interpreter have these faults, too
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_EPHEMERAL = range(49152, 65536)  # RFC 6335, s. 6: dynamic ports
_LISTENING = "0A"  # TCP_LISTEN of include/net/tcp_states.h in the Linux kernel
DEADLINE_S = 600.0  # vLLM's own default for an engine to be ready (VLLM_ENGINE_READY_TIMEOUT_S)
_GRACE_S = 15.0
_POLL_S = 0.1
_READY = "Application startup complete"  # uvicorn prints this line when the server listens
# Class of failure -> pattern in vLLM's log; the first match wins. Source: logs of vLLM 0.32, one failure each.
_CLASSES = (
    ("port", r"Address already in use"),
    (
        "environment",
        r"ModuleNotFoundError|ImportError|PackageNotFoundError|operator \S+ does not exist|undefined symbol",
    ),
    ("driver", r"NVIDIA driver|CUDA driver version|no CUDA-capable device|libcuda"),
    ("memory", r"out of memory|KV cache is needed|cache blocks|[Ff]ree memory on device|Available memory on"),
    (
        "model",
        r"LocalEntryNotFoundError|Repo id must be|does not recognize this arch|not supported for now|GatedRepoError",
    ),
    ("config", r"ValidationError|unrecognized arguments|invalid choice|Value error,|must be divisible|max_model_len"),
)
_ROOT = r"(?:^|\s)(?:[\w.]+(?:Error|Exception)\b.*|\S+: error: .*|Value error, .*)"

CUDA_DEADLINE_S = 120.0  # importing torch from a cold disk, then a context on each of eight GPUs
_CUDA_PROGRAM = """
import torch
if not torch.cuda.is_available():
    torch.cuda.init()  # raises the reason
for index in range(torch.cuda.device_count()):
    with torch.cuda.device(index):
        torch.ones(8, device="cuda").sum().item()
print(torch.cuda.device_count())
"""


class _Unshown(io.StringIO):
    """Drops what is written, which may be endless."""

    def write(self, text: str) -> int:
        return len(text)


def try_tasksets(run: RunSpec, limit_s: float) -> tuple[TasksetTrial, ...] | NotKnown:
    """A trial of each taskset; NotKnown if one is not open within `limit_s`. What is not installed is left out."""
    trials: list[TasksetTrial] = []
    for number, source in enumerate(run.tasks):
        if source.kind != "verifiers" or not source.id:
            continue
        field = f"tasks.{number}.id"
        try:
            taskset = start_taskset(source, source.id, limit_s, _Unshown())
        except UserError as error:
            if Path(source.id).expanduser().exists():  # else it is not installed
                trials.append(TasksetTrial(field, error.what, error.fix))
        except OpeningFailed as error:
            if error.kind == "slow":
                return NotKnown(f"{source.id} was not open after {limit_s:g} s")
            if error.kind not in _NOT_INSTALLED:
                trials.append(TasksetTrial(field, " ".join(str(error).split())[:500], advise(source, error)))
        else:
            trials.append(_score(field, taskset))
    return tuple(trials)


def _score(field: str, taskset: Taskset) -> TasksetTrial:
    try:
        task = taskset.task("train", 0)
        reward = taskset.score(task, [*task.messages, Message("assistant", _ANSWER)])
    except EnvironmentFailed as error:
        place = failed_place(error.trace)
        return TasksetTrial(field, reward_fault=" ".join(str(error).split())[:300], fix=place and f"correct {place}")
    finally:
        taskset.close()
    fault = "" if math.isfinite(reward) else f"it is {reward}"
    return TasksetTrial(field, reward_fault=fault)


def create_cuda_context(python: str, deadline_s: float = CUDA_DEADLINE_S) -> CudaContext | NotKnown:
    """Whether torch computes on every GPU; `failure` is the error of CUDA."""
    answer = run_probe([python, "-c", _CUDA_PROGRAM], deadline_s, environment=SAFE_PATH)
    if isinstance(answer, NoAnswer):
        return CudaContext(0, f"torch created no CUDA context within {deadline_s:g} s")
    if isinstance(answer, NotKnown):
        return answer
    if answer.code == 0 and answer.out.strip().isdigit():
        return CudaContext(int(answer.out), "")
    if "No module named 'torch'" in answer.last_line:
        return NotKnown(f"{python} has no torch")
    return CudaContext(0, answer.last_line or f"the child ended with exit code {answer.code}")


def find_busy_ports(ports: Iterable[int], *, offline: bool) -> tuple[BusyPort, ...]:
    """The ports that a server cannot listen on. With `offline`, reads the kernel's table instead of opening sockets."""
    wanted = sorted(set(ports))
    if not offline:
        return tuple(BusyPort(port, why) for port in wanted if (why := _listen_error(port)))
    listening = _listening(TABLES)
    return tuple(BusyPort(port, "a process listens on it") for port in wanted if port in listening)


def find_free_port() -> int:
    """A free port, from the kernel's table. Another process may take it before its use."""
    taken = _listening(TABLES)
    return next(port for port in random.sample(_EPHEMERAL, len(_EPHEMERAL)) if port not in taken)


def _listen_error(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)  # SO_REUSEADDR allows two binds, but only one listener
        except OSError as error:
            return "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return ""


def _listening(tables: Iterable[Path]) -> frozenset[int]:
    """The ports with a listener on any address. Source: proc_pid_net(5): the port is hexadecimal."""
    found: set[int] = set()
    for table in tables:
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if len(columns) > 3 and columns[3] == _LISTENING:
                found.add(int(columns[1].rpartition(":")[2], 16))
    return frozenset(found)


def start(python: str, arguments: Sequence[str], deadline_s: float = DEADLINE_S) -> EngineStart | NotKnown:
    """Whether an engine with these arguments starts; `failure` is "" or a class of failure."""
    port = find_free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--load-format", "dummy", "--enforce-eager", *arguments]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | SAFE_PATH,
                start_new_session=True,
                text=True,
            )
        except OSError as error:
            return NotKnown(f"{python} does not start: {error.strerror or error}")
        try:
            failure = _await(process, log, begin + deadline_s)
        finally:
            _end(process)
        took_s = time.monotonic() - begin
        if failure is None:
            return EngineStart("", "", took_s)
        return EngineStart(*(failure if failure[0] else classify(_text(log))), took_s)


def _await(process: subprocess.Popen[str], log: IO[str], deadline_s: float) -> tuple[str, str] | None:
    """None if it is ready, ("timeout", why) if it is too slow, ("", "") if it ended: its log has the reason."""
    while time.monotonic() < deadline_s:
        if _READY in _text(log):
            return None
        if process.poll() is not None:
            return "", ""
        time.sleep(_POLL_S)
    return "timeout", "it was not ready in time"


def _text(log: IO[str]) -> str:
    """The content of the log. Uses pread, because the child writes through the same open file."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # the engine core hangs, so its session is killed below
            process.wait(_GRACE_S)
    kill_session(process)


def classify(log: str) -> tuple[str, str]:
    """(class, line) of the first error in vLLM's log. Its last lines only refer to an error above."""
    roots = [match[0].strip() for line in log.splitlines() if (match := re.search(_ROOT, line))]
    for line in roots:
        for name, pattern in _CLASSES:
            if re.search(pattern, line):
                return name, line
    return "other", roots[0] if roots else "it ended without an error message"
