"""Runs a Python module that this process may not import, such as one with torch, as a child, and shows its progress."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import IO, Any

from prime_train.cli.terminal.output import show_bytes, show_count
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.core.python_child import own_module

_SHOWN = 300  # characters of the last line of a child that failed


def run_child(
    module: str, request: Mapping[str, Any], does: str = "reads the checkpoint", extra: str = "train"
) -> dict[str, Any]:
    """The result of `python -m module` for a request.

    The child reads the request as JSON from standard input, and prints a JSON object per line: {"phase", "total_bytes"}
    or {"phase", "total"} begins a phase, {"bytes"} or {"done"} counts in it, and {"result"} or {"error"} is the last.
    `does`: what the child does, and `extra`: what it needs, for the message where it fails.

    Raises the child's UserError, or one that describes how the child ended.
    """
    with tempfile.TemporaryFile() as errors, ExitStack() as stack:
        process = subprocess.Popen(own_module(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        stack.callback(_end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the end is described below
            process.stdin.write(json.dumps(dict(request)).encode())
            process.stdin.close()
        last = _follow(process.stdout)
        process.wait()
        if "error" in last:
            error = last["error"]
            raise UserError(**error | {"exit_code": ExitCode(error["exit_code"])})
        if process.returncode == 0 and "result" in last:
            result: dict[str, Any] = last["result"]
            return result
        raise _failed(process.returncode, errors, does, extra)


def _follow(output: IO[bytes]) -> dict[str, Any]:
    """Show the phases of the child; returns its last line. Other lines come from modules that print."""
    last: dict[str, Any] = {}
    with ExitStack() as bars:
        count = bars.enter_context(show_bytes(0, "starting"))
        for last in _read_lines(output):
            if "phase" in last:
                bars.close()
                begin = show_count(last["total"], last["phase"]) if "total" in last else None
                count = bars.enter_context(begin or show_bytes(last["total_bytes"], last["phase"]))
            elif "bytes" in last or "done" in last:
                count(last.get("bytes") or last.get("done") or 0)
    return last


def _read_lines(output: IO[bytes]) -> Iterator[dict[str, Any]]:
    for line in output:
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a child that still runs, because this process was interrupted, and let it delete what it has begun."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _failed(code: int, errors: IO[bytes], does: str, extra: str) -> UserError:
    errors.seek(0)
    lines = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].strip()[:_SHOWN] if lines else "no error message"
    if code == -signal.SIGKILL:
        return UserError(
            what="it was killed",
            where=f"the process that {does}",
            why="the kernel kills a process when the memory of the machine or of its group is full",
            fix="end other programs, or use a machine with more memory; see `dmesg | tail`",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    missing = "ModuleNotFoundError" in last
    return UserError(
        what=f"it ended with exit code {code}: {last}",
        where=f"the process that {does}",
        why=f"it needs packages of the extra {extra}" if missing else "this is a bug in prime-train",
        fix=install_command(extra) if missing else "report it with this message",
        exit_code=ExitCode.OUT_OF_REACH if missing else ExitCode.BUG,
    )
