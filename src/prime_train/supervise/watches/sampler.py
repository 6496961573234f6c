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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prime_train.core.process_id import Identity, identify
from prime_train.core.rundir import make_folder, open_private
from prime_train.supervise.launch.launch import SHIM

Value = TypeVar("Value")

_KEPT = 1000  # samples that were not taken yet: more than an hour of them
_END_S = 2.0  # for the child to end after SIGKILL


class Sampler:
    """A child that writes samples. Call `begin` only from the main thread: see process.spawn.

    The program stamps its samples with time.monotonic(), which is the same clock in all processes of a machine. Its
    errors go to `log`.
    """

    def __init__(
        self, program: Path, arguments: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        # -P: a module in the program's own folder must not hide a package.
        self._argv = [sys.executable, "-P", str(program), *arguments]
        self._log = log
        self._variables = dict(variables or {})
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._child: subprocess.Popen[str] | None = None
        self._identity: Identity | None = None
        self._received_s = 0.0
        self._reader: threading.Thread | None = None

    def begin(self) -> None:
        """Start the child. Raises OSError if it cannot start."""
        make_folder(self._log.parent)
        with open(self._log, "ab", opener=open_private) as log:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SHIM), str(os.getpid()), "", *self._argv],
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
        name = f"sampler-{self._child.pid}"
        self._reader = threading.Thread(target=self._read, args=(self._child,), name=name, daemon=True)
        self._reader.start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # a line that was torn when the child was killed
                self._samples.append(json.loads(line))
                self._received_s = time.monotonic()

    def take(self) -> list[dict[str, Any]]:
        """The samples since the last call, oldest first."""
        taken = []
        while self._samples:
            taken.append(self._samples.popleft())
        return taken

    @property
    def silent_s(self) -> float:
        """Seconds since the last sample, or since the start."""
        return time.monotonic() - self._received_s

    @property
    def ended(self) -> int | None:
        """The exit code of the child; None while it runs, and before it starts."""
        return self._child.poll() if self._child is not None else None

    def processes(self) -> tuple[Identity, ...]:
        return (self._identity,) if self._identity is not None and self._identity.alive else ()

    def end(self, limit_s: float = _END_S) -> None:
        """End the child, and read what it wrote. A child that waits in the kernel is left behind, and ends when the
        kernel allows it."""
        if self._child is None or self._reader is None:
            return
        until_s = time.monotonic() + limit_s
        if self._child.poll() is None:  # else its pid may belong to another process by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(limit_s)
        self._reader.join(max(0.0, until_s - time.monotonic()))


class Sampled:
    """Base of a watch whose samples come from one sampler."""

    _sampler: Sampler

    def begin(self) -> None:
        """Start to take samples. Call it only from the main thread; raises OSError if no process can start."""
        self._sampler.begin()

    def processes(self) -> tuple[Identity, ...]:
        return self._sampler.processes()

    def end(self) -> None:
        self._sampler.end()


# --- samples as values -----------------------------------------------------------------------------


def load(kind: type[Value], raw: object) -> Value:
    """The value of `kind` in what `sample_lines.dump` wrote, parsed or not. Raises ValueError for anything else.

    msgspec, because pydantic takes 4 MiB more in a supervisor, and 30 ms of its start (measured on Python 3.11).
    """
    return msgspec.convert(json.loads(raw) if isinstance(raw, str) else raw, kind, dec_hook=_from_plain)


def _from_plain(kind: type, raw: Any) -> Any:
    """A path; msgspec makes every other value, and reports a ValueError with its place in the sample."""
    assert kind is Path, kind
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not a path")
    return Path(raw)
