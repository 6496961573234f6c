"""Asks a child process a question. It has a deadline: a wedged driver or mount holds the child, never this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prime_train.facts.facts import NotKnown

_REAP_S = 0.5  # a process that waits for a device is not ended by SIGKILL: it is left behind, not waited for


@dataclass(frozen=True, slots=True)
class Answer:
    """How a child ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of what it complained: where Python and most programs name the fault."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def script(name: str) -> str:
    """The path of a program in this folder that another interpreter may run: it uses the standard library alone."""
    return str(Path(__file__).with_name(f"{name}.py"))


def run_probe(
    command: Sequence[str], deadline_s: float, *, given: str = "", environment: Mapping[str, str] | None = None
) -> Answer | NotKnown:
    """The answer of `command`, with `given` as its standard input; NotKnown where it cannot start or is too late."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return NotKnown(f"{command[0]} does not start: {error.strerror or error}")
    try:
        out, err = process.communicate(given, timeout=deadline_s)
    except subprocess.TimeoutExpired:
        kill_session(process)
        return NotKnown(f"no answer within {deadline_s:g} s")
    return Answer(process.returncode, out, err)


def kill_session(process: subprocess.Popen[str]) -> None:
    """Ends a child and everything in its session that is still there."""
    with suppress(ProcessLookupError):  # all of it has ended meanwhile
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with suppress(BrokenPipeError):  # what it was still to be told
            if pipe is not None:
                pipe.close()
    with suppress(subprocess.TimeoutExpired):  # see _REAP_S
        process.wait(_REAP_S)
