"""Starts vLLM once, without weights, in the run's interpreter, and ends it again. Serves nobody and opens no socket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from prime_train.facts import ports
from prime_train.facts.child import kill_session
from prime_train.facts.facts import EngineStart, NotKnown

DEADLINE_S = 600.0  # vLLM's own default for an engine to be ready (VLLM_ENGINE_READY_TIMEOUT_S)
_GRACE_S = 15.0
_POLL_S = 0.1
_READY = "Application startup complete"  # uvicorn's line: the server listens

# What a line of vLLM's log means, first match first. Source: logs of vLLM 0.32, one failure each.
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


def start(python: str, arguments: Sequence[str], deadline_s: float = DEADLINE_S) -> EngineStart | NotKnown:
    """How an engine with these arguments starts: `failure` is "" where it does, else a class of failure."""
    port = ports.unused()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--load-format", "dummy", "--enforce-eager", *arguments]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, text=True
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
    """None where it is ready, ("timeout", why) where it never was, ("", "") where it ended: its log says why."""
    while time.monotonic() < deadline_s:
        if _READY in _text(log):
            return None
        if process.poll() is not None:
            return "", ""
        time.sleep(_POLL_S)
    return "timeout", "it did not come up in time"


def _text(log: IO[str]) -> str:
    """What stands in the log. Read by position: the child writes through the same open file."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # the engine core hangs: its whole session is ended below
            process.wait(_GRACE_S)
    kill_session(process)


def classify(log: str) -> tuple[str, str]:
    """(class, line) of the first fault in a log of vLLM: its last lines say only that there was one above."""
    roots = [match[0].strip() for line in log.splitlines() if (match := re.search(_ROOT, line))]
    for line in roots:
        for name, pattern in _CLASSES:
            if re.search(pattern, line):
                return name, line
    return "other", roots[0] if roots else "it ended and named no error"
