"""Runs a probe in a child process with a deadline, so a stuck driver or mount blocks the child, never this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.facts.facts import NotKnown

_REAP_S = 0.5  # SIGKILL does not end a process that waits for a device: such a process is left behind


class NoAnswer(NotKnown):
    """The child did not end within its deadline."""


@dataclass(frozen=True, slots=True)
class ProbeOutput:
    """The exit code and the output of a child."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of stderr, where Python and most programs report the error."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def script(name: str, beside: str = __file__) -> str:
    """The path of a program beside the module file `beside`. Another interpreter can run such a program by its path."""
    return str(Path(beside).with_name(f"{name}.py"))


def run_probe(
    command: Sequence[str], deadline_s: float, *, stdin: str = "", environment: Mapping[str, str] | None = None
) -> ProbeOutput | NotKnown:
    """The answer of `command`, with `stdin` as its standard input; NotKnown if it does not start or is too slow."""
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
        out, err = process.communicate(stdin, timeout=deadline_s)
    except subprocess.TimeoutExpired:
        kill_session(process)
        return NoAnswer(f"no answer within {deadline_s:g} s")
    return ProbeOutput(process.returncode, out, err)


def read_answer(
    who: str,
    command: Sequence[str],
    deadline_s: float,
    request: object = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any] | NotKnown:
    """The JSON object in the last line that `command` prints, after it read `request` as JSON.

    Earlier lines are ignored, because an imported module may print them. `who` names the program in the reason.
    """
    answer = run_probe(command, deadline_s, stdin=json.dumps(request), environment=environment)
    if isinstance(answer, NotKnown):
        return answer
    last = answer.out.splitlines()[-1:]
    try:
        output = json.loads("".join(last))
    except (ValueError, RecursionError):
        output = None
    if isinstance(output, dict) and answer.code == 0:
        return output
    if answer.code == 0 and last:
        return NotKnown(f"{who} is not a Python interpreter: it answered {last[0][:80]!r}")
    return NotKnown(f"{who} ended with exit code {answer.code}: {answer.last_line or 'no error message'}")


def kill_session(process: subprocess.Popen[str]) -> None:
    """Kills every process in the session of a child."""
    with suppress(ProcessLookupError):  # all have ended already
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with suppress(BrokenPipeError):  # input that the child has not read
            if pipe is not None:
                pipe.close()
    with suppress(subprocess.TimeoutExpired):  # see _REAP_S
        process.wait(_REAP_S)
