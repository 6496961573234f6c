"""Runs a small program in a child that takes samples, one JSON line each. A sample that hangs blocks only the child."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_train.core.process_id import Identity, identify
from prime_train.core.rundir import make_folder, open_private
from prime_train.supervise.launch.program import SHIM
from prime_train.supervise.watches.sample_lines import Value, load

_KEPT = 1000  # samples that were not taken yet: more than an hour of them
_LONGEST_LINE = 64 * 2**20  # characters; what follows is no line of its own, so it is left out
_END_S = 2.0  # for the child to end after SIGKILL
_RETRY_S = 10.0  # until another child starts, twice as long each time
_RETRY_MAX_S = 300.0
_STEADY_S = 600.0  # a child that lived so long was well


class Sampler:
    """A child that writes samples. Call `begin` and `keep` only from the main thread: see process.spawn.

    The program stamps its samples with time.monotonic(), which is the same clock in all processes of a machine. Its
    errors go to `log`. `arguments` may change between two children.
    """

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        log: Path,
        variables: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.arguments = arguments
        self._program = program
        self._log = log
        self._variables = dict(variables or {})
        self._clock = clock
        self._began_s = 0.0
        self._retry_s: float | None = None  # when another child starts in the place of this one
        self._pause_s = _RETRY_S
        self._failed: int | None = None  # the exit code of the child before, until this one has written a sample
        self._is_over = False
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._child: subprocess.Popen[str] | None = None
        self._identity: Identity | None = None
        self._received_s = 0.0
        self._reader: threading.Thread | None = None

    def begin(self) -> None:
        """Start the child. Raises OSError if it cannot start."""
        make_folder(self._log.parent)
        # -P: a module in the program's own folder must not hide a package.
        argv = [sys.executable, "-P", str(self._program), *self.arguments]
        with open(self._log, "ab", opener=open_private) as log:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), "", *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=os.environ | self._variables,
                start_new_session=True,
            )
        self._identity = identify(self._child.pid)
        self._received_s = time.monotonic()
        self._began_s = self._clock()
        name = f"sampler-{self._child.pid}"
        self._reader = threading.Thread(target=self._read, args=(self._child,), name=name, daemon=True)
        self._reader.start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        while line := child.stdout.readline(_LONGEST_LINE):
            with contextlib.suppress(ValueError, RecursionError):  # a line that was torn when the child was killed
                self._samples.append(json.loads(line))
                self._received_s = time.monotonic()

    def take(self) -> list[dict[str, Any]]:
        """The samples since the last call, oldest first."""
        taken = []
        while self._samples:
            taken.append(self._samples.popleft())
        if taken:
            self._failed = None
        return taken

    def keep(self, *, is_stuck: bool = False) -> None:
        """Start another child, some time after this one has ended, or was ended here because it `is_stuck`.

        The time doubles while no child lives long. There are never two children: a stuck one, which may wait in the
        kernel, must end first.
        """
        now_s = self._clock()
        if self._child is None or self._is_over:
            return
        if self._retry_s is None:
            if self.ended is None and not is_stuck:
                return
            if self.ended is None:  # in a thread, because the end of a process in the kernel may take long
                threading.Thread(target=self._kill, args=(_END_S,), name="sampler-end", daemon=True).start()
            if self.age_s > _STEADY_S:
                self._pause_s = _RETRY_S
            self._retry_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _RETRY_MAX_S)
        elif now_s >= self._retry_s and not self.processes():
            ended = self.ended
            try:
                self.begin()
            except OSError:  # the machine is out of processes or memory
                self._retry_s = now_s + self._pause_s
            else:
                self._retry_s, self._failed = None, ended

    @property
    def silent_s(self) -> float:
        """Seconds since the last sample, or since the start."""
        return time.monotonic() - self._received_s

    @property
    def age_s(self) -> float:
        """Seconds since the start of this child."""
        return self._clock() - self._began_s

    @property
    def ended(self) -> int | None:
        """The exit code of the child; None while it runs, and before it starts."""
        return self._child.poll() if self._child is not None else None

    @property
    def failed(self) -> int | None:
        """The exit code of a child that ended, until another one has written a sample; None while all is well."""
        return self._failed if self.ended is None else self.ended

    @property
    def is_restarting(self) -> bool:
        """Whether another child will start in the place of this one."""
        return self._retry_s is not None

    def processes(self) -> tuple[Identity, ...]:
        return (self._identity,) if self._identity is not None and self._identity.alive else ()

    def end(self, limit_s: float = _END_S) -> None:
        """End the child for the last time, and read what it wrote.

        A child that waits in the kernel is left behind, and ends when the kernel allows it.
        """
        self._is_over = True
        self._kill(limit_s)

    def _kill(self, limit_s: float) -> None:
        if self._child is None or self._reader is None:
            return
        until_s = time.monotonic() + limit_s
        if self._child.poll() is None:  # else its pid may belong to another process by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(limit_s)
        self._reader.join(max(0.0, until_s - time.monotonic()))


class SampledWatch:
    """Base of a watch whose samples come from one sampler."""

    _sampler: Sampler

    def begin(self) -> None:
        """Start to take samples. Call it only from the main thread; raises OSError if no process can start."""
        self._sampler.begin()

    def take(self, kind: type[Value]) -> list[Value]:
        """The samples since the last look. Another child starts in the place of one that has ended."""
        self._sampler.keep()
        return [load(kind, raw) for raw in self._sampler.take()]

    def processes(self) -> tuple[Identity, ...]:
        return self._sampler.processes()

    def end(self) -> None:
        self._sampler.end()
