"""Reads the last lines of an attempt's logs for a controller: bounded, and with secrets masked. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_train.core.errors import UserError
from prime_train.core.outside import open_regular
from prime_train.core.redaction import LONGEST_KEY, redact
from prime_train.core.rundir import RunDir

MOST_LINES = 1000
_MOST_LOGS = 8  # in an attempt: one for each role
_LAST_BYTES = 64 << 10  # in each log; one byte becomes at most six in a message
_LINE_CHARACTERS = 2000


def read_log_tail(run_dir: RunDir, body: object, hidden: Sequence[str]) -> dict[str, Any]:
    """All attempts by number, and the last lines that one has: {"attempt": N or null, "lines": N}. Raises UserError."""
    wanted = body if isinstance(body, dict) else {}
    attempts = sorted(int(path.name) for path in run_dir.path.glob("attempts/*") if path.name.isdecimal())
    attempt, lines = wanted.get("attempt"), wanted.get("lines", MOST_LINES)
    attempt = attempts[-1] if attempt is None and attempts else attempt
    if attempt not in attempts:
        fix = f"prime-train status {run_dir.path.name}"
        raise UserError("there is no such log", str(run_dir.path), "no attempt with this number has started", fix)
    count = lines if type(lines) is int and 0 < lines <= MOST_LINES else MOST_LINES
    found = join_logs([(path.stem, read_end(path, count, hidden)) for path in list_logs(run_dir, attempt)])
    return {"attempt": attempt, "attempts": attempts[-100:], "lines": found}


def list_logs(run_dir: RunDir, attempt: int) -> list[Path]:
    return sorted(run_dir.attempt(attempt).glob("*.log"))[:_MOST_LOGS]


def join_logs(logs: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The lines of all roles, each with its role where there are several."""
    return [f"{role} | {line}" if len(logs) > 1 else line for role, lines in logs for line in lines]


def read_end(path: Path, count: int, hidden: Sequence[str]) -> list[str]:
    """The last lines in one file; none where it cannot be read."""
    try:
        with open_regular(path, path.parent) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _LAST_BYTES - LONGEST_KEY))
            text = file.read(_LAST_BYTES + LONGEST_KEY).decode(errors="replace")
    except OSError:
        return []
    # The text before the last _LAST_BYTES is read for the head of a private key alone: without it the rest is no key.
    lines = redact(text, hidden)[-_LAST_BYTES:].splitlines()
    return [line[:_LINE_CHARACTERS] for line in lines[-count:]]
