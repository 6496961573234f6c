"""A child process that answers JSON lines: calls with a time limit, and a new process in place of one that ended."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import IO, Any, TextIO

import psutil

from prime_train.core.python_child import SAFE_PATH
from prime_train.environments.environment import EnvironmentFailed

MAX_STARTS = 5  # in a row, without an answer between them
MAX_LINE_BYTES = 16 * 2**20  # of one answer
GRACE_S = 5.0  # the child has its own time limit for a call; after so much more it is ended
_KEPT_STDERR_LINES = 40
_EXIT_S = 1.0  # from the end of its output to its own exit
_REAP_S = 2.0


class OpeningFailed(Exception):
    """The child does not start, or refuses its opening. `kind` is the child's word for the reason."""

    def __init__(self, message: str, kind: str = "", trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


class _Lost(Exception):
    """The child ended before it answered a call."""


class _Process:
    """One life of the child."""

    def __init__(self, command: Sequence[str], log: TextIO | None = None) -> None:
        self._log = log
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # A taskset may import what stands beside it; the trainer itself imports nothing from there.
                env={name: value for name, value in os.environ.items() if name not in SAFE_PATH},
                start_new_session=True,  # a Ctrl-C is for the trainer, which then ends the child
            )
        except OSError as error:
            raise OpeningFailed(f"{command[0]} does not start: {error.strerror or error}", "python") from error
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_KEPT_STDERR_LINES)
        self._opened: Future[dict[str, Any]] = Future()
        self._lost = False
        self._stderr = threading.Thread(target=self._read_stderr, daemon=True)
        self._stderr.start()
        threading.Thread(target=self._read_answers, daemon=True).start()

    def open(self, opening: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Hand over the opening; returns the child's answer. Raises OpeningFailed, after which the child has ended."""
        try:
            self._write(opening)
            wait([self._opened], limit_s)
            if not self._opened.done():
                raise OpeningFailed(f"it was not ready after {limit_s:.4g} s", "slow")
            answer = self._opened.result()
        except _Lost as error:
            self.end()
            raise OpeningFailed(str(error), "ended") from error
        except OpeningFailed:
            self.end()
            raise
        if "error" in answer:
            self.end()
            raise OpeningFailed(str(answer["error"]), str(answer.get("kind", "")), str(answer.get("trace", "")))
        result = answer.get("result")
        if not isinstance(result, dict):
            self.end()
            raise OpeningFailed("it answers its opening with no description of its tasks", "ended")
        return result

    def ask(self, number: int, call: Mapping[str, Any]) -> Future[dict[str, Any]]:
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._lost:
                raise _Lost(self._describe_end())
            self._answers[number] = answer
        self._write(call)
        return answer

    @property
    def is_lost(self) -> bool:
        return self._lost

    def end(self) -> None:
        """Kill the child and every process that it started."""
        if self.process.poll() is not None:  # its number may be that of another process by now
            return
        with suppress(psutil.Error):
            started = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for process in started:
                with suppress(psutil.Error):
                    process.kill()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that the kernel holds is left behind
            self.process.wait(_REAP_S)

    def _write(self, value: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        line = json.dumps(value).encode() + b"\n"
        try:
            with self._lock:
                self.process.stdin.write(line)
                self.process.stdin.flush()
        except (OSError, ValueError):
            raise _Lost(self._describe_end()) from None

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for answer in _read_objects(self.process.stdout):
            if not self._opened.done():
                self._opened.set_result(answer)
                continue
            with self._lock:
                number = answer.get("id")  # what the child writes is the work of code from outside
                future = self._answers.pop(number, None) if isinstance(number, int) else None
            if future is not None:
                future.set_result(answer)
        with suppress(subprocess.TimeoutExpired):  # its own exit code explains more than that of a kill
            self.process.wait(_EXIT_S)
        self.process.kill()  # a child that writes something else than JSON is of no use
        self._stderr.join(_REAP_S)
        with self._lock:
            self._lost = True
            waiting = [*self._answers.values(), self._opened]
            self._answers.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(_Lost(self._describe_end()))

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in iter(lambda: self.process.stderr.readline(64 * 1024), b""):  # type: ignore[union-attr]
            text = line.decode(errors="replace")
            (self._log or sys.stderr).write(text)
            self._lines.append(text.rstrip())

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_REAP_S)
        self._stderr.join(_REAP_S)  # the reason is its last line, which may not have been read yet
        last = next((line for line in reversed(self._lines) if line.strip()), "no message")
        return f"its process ended with exit code {self.process.poll()}: {last[:500]}"


class Child:
    """Calls to a child, from any thread; one that ended is started again. `log` gets its stderr; None = our own."""

    def __init__(
        self, command: Sequence[str], opening: Mapping[str, Any], open_limit_s: float, log: TextIO | None = None
    ) -> None:
        self._command = command
        self._log = log
        self._opening = opening
        self._open_limit_s = open_limit_s
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._starts = 0  # since the last answer
        self._closed = False

    def open(self) -> dict[str, Any]:
        """Start the child; returns its answer to the opening. Raises OpeningFailed."""
        with self._lock:
            return self._start()

    def call(self, call: Mapping[str, Any], limit_s: float) -> Any:
        """The result of a call, which is repeated once if the child ended. EnvironmentFailed, also after `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        for is_last in (False, True):
            process = self._running()
            number = next(self._numbers)
            try:
                rest_s = max(0.0, deadline_s - time.monotonic())
                future = process.ask(number, {**call, "id": number, "limit_s": rest_s})
                wait([future], rest_s + GRACE_S)
                if not future.done():
                    process.end()
                    raise EnvironmentFailed(f"no answer within {limit_s:.4g} s; its process was ended")
                answer = future.result()
            except _Lost as error:
                if is_last or time.monotonic() >= deadline_s:
                    raise EnvironmentFailed(str(error)) from error
                continue
            self._starts = 0
            if "error" in answer:
                raise EnvironmentFailed(str(answer["error"]), str(answer.get("trace", "")))
            return answer.get("result")
        raise AssertionError("the last call returns or raises")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.end()

    def _running(self) -> _Process:
        with self._lock:
            if self._closed:
                raise EnvironmentFailed("the environment is closed")
            if self._process is None or self._process.is_lost or self._process.process.poll() is not None:
                if self._starts >= MAX_STARTS:
                    raise EnvironmentFailed(f"its process ended {MAX_STARTS} times without an answer")
                try:
                    self._start()
                except OpeningFailed as error:
                    raise EnvironmentFailed(str(error), error.trace) from error
            assert self._process is not None
            return self._process

    def _start(self) -> dict[str, Any]:
        self._starts += 1
        self._process = None
        process = _Process(self._command, self._log)
        opened = process.open(self._opening, self._open_limit_s)
        self._process = process
        return opened


def _read_objects(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream, one per line, until one is not an object or too long."""
    while line := stream.readline(MAX_LINE_BYTES):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(value, dict):
            return
        yield value
