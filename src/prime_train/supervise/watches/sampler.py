"""Has a small program take samples in a child, one JSON object to a line. A sample that hangs holds up nobody."""

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_train.core.process_id import Identity, identify
from prime_train.supervise.launch.launch import SHIM

_KEPT = 1000  # samples that nobody has taken yet: more than an hour of them
_END_S = 2.0  # for the child to end after SIGKILL; one that waits in the kernel is left behind


class Sampler:
    """A child that writes samples. `begin` only from the main thread: see process.spawn.

    The program stamps its samples itself, with time.monotonic(), which is one clock for all processes of a machine.
    Its errors go to `log`.
    """

    def __init__(
        self, program: Path, arguments: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self._argv = [sys.executable, str(program), *arguments]
        self._log = log
        self._variables = dict(variables or {})
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._child: subprocess.Popen[str] | None = None
        self._identity: Identity | None = None
        self._heard_s = 0.0

    def begin(self) -> None:
        """Start the child. Raises OSError where it cannot be started."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=os.environ | self._variables,
                start_new_session=True,
            )
        self._identity = identify(self._child.pid)
        self._heard_s = time.monotonic()
        threading.Thread(target=self._read, args=(self._child,), name=f"sampler-{self._child.pid}", daemon=True).start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # a line that was torn when the child was killed
                self._samples.append(json.loads(line))
                self._heard_s = time.monotonic()

    def take(self) -> list[dict[str, Any]]:
        """The samples since the last call, oldest first."""
        taken = []
        while self._samples:
            taken.append(self._samples.popleft())
        return taken

    @property
    def silent_s(self) -> float:
        """Seconds since the last sample, or since the start."""
        return time.monotonic() - self._heard_s

    @property
    def ended(self) -> int | None:
        """The exit code of the child; None while it runs, and before it is started."""
        return self._child.poll() if self._child is not None else None

    def processes(self) -> tuple[Identity, ...]:
        return (self._identity,) if self._identity is not None and self._identity.alive else ()

    def end(self) -> None:
        """End the child. One that waits in the kernel is left behind, and ends when the kernel lets it."""
        if self._child is None or self._child.poll() is not None:  # its number may be another process's by now
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_S)
