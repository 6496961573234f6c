"""Reads what an earlier run took: a run directory, a metrics.jsonl of ours or prime-rl's, a JSON of numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.errors import ExitCode, UserError
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec

_MAX_BYTES = 256 * 2**20  # a million steps of metrics


class PreviousRun(NamedTuple):
    """The lines of its metrics; its RunSpec where it is a run directory of ours, else None."""

    lines: tuple[dict[str, Any], ...]
    run: RunSpec | None
    source: str


def read_previous_run(named: str) -> PreviousRun:
    """What the run directory, or the file, says. Raises UserError where it cannot be read or holds no lines."""
    path = Path(named).expanduser()
    if not path.exists() and (Path("runs") / named).is_dir():
        path = Path("runs") / named
    is_run = path.is_dir()
    run_dir = RunDir(path.resolve())
    metrics = run_dir.metrics if is_run else path
    lines = _lines(metrics, named)
    return PreviousRun(lines, _resolved(run_dir, named) if is_run else None, named)


def _lines(path: Path, named: str) -> tuple[dict[str, Any], ...]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(
            what=f"{path} cannot be read: {error.strerror or error}",
            where=f"--calibrate {named}",
            why="it takes a run, a metrics.jsonl, or a JSON object of numbers",
            fix='a file with {"peak_reserved_gib": 41.5, "step_s": 3.2} is enough',
        ) from None
    if len(content) > _MAX_BYTES:
        raise _unreadable(named, f"{path} has more than {_MAX_BYTES} bytes")
    text = content.decode("utf-8", errors="replace")
    whole = _parsed(text)
    values = whole if isinstance(whole, list) else [whole] if whole is not None else _json_lines(text)
    lines = tuple(value for value in values if isinstance(value, dict))
    if not lines:
        raise _unreadable(named, f"{path} holds no JSON object")
    return lines


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_lines(text: str) -> list[Any]:
    """Each line by itself; a torn one, as the last of a run that still goes on, is left out."""
    return [_parsed(line) for line in text.splitlines() if line.strip()]


def _resolved(run_dir: RunDir, named: str) -> RunSpec | None:
    """The RunSpec that the run was started with; None where the folder keeps none (a prime-rl run)."""
    try:
        text = run_dir.resolved.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(named, f"{run_dir.resolved} cannot be read: {error.strerror or error}") from None
    from pydantic import ValidationError

    from prime_train.spec import from_json

    try:
        return from_json(text)
    except ValidationError:
        raise _unreadable(named, f"{run_dir.resolved} is of another version of prime-train") from None


def _unreadable(named: str, what: str) -> UserError:
    return UserError(
        what=what,
        where=f"--calibrate {named}",
        why="peak memory and step time are read out of lines of JSON",
        fix='a file with {"peak_reserved_gib": 41.5, "step_s": 3.2} is enough',
        exit_code=ExitCode.FINDINGS,
    )
