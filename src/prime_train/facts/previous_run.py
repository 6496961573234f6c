"""Reads the metrics of a previous run: a run directory, a metrics.jsonl, or a JSON object of numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import RECORD_BYTES, OutsideError, parse_json
from prime_train.core.process_id import live_holder
from prime_train.core.rundir import RunDir
from prime_train.facts.facts import RunFolder, StepFolder
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.checkpoints.layout import SavedCheckpoint  # 9 ms of the start of `estimate`

_MAX_BYTES = 256 * 2**20  # a million steps of metrics


class PreviousRun(NamedTuple):
    """The lines of its metrics, and its RunSpec if `source` is a run directory of prime-train, else None."""

    lines: tuple[dict[str, Any], ...]
    run: RunSpec | None
    source: str


def read_previous_run(named: str) -> PreviousRun:
    """The metrics in a run directory or a file. Raises UserError if it cannot be read or has none."""
    path = Path(named).expanduser()
    if not path.exists() and (Path("runs") / named).is_dir():
        path = Path("runs") / named
    is_run = path.is_dir()
    run_dir = RunDir(path.resolve() if is_run else path.resolve().parent)
    lines = _lines(run_dir.metrics if is_run else path, named)
    has_config = is_run or path.name == run_dir.metrics.name  # a run keeps its config beside its metrics
    return PreviousRun(lines, _read_spec(run_dir, named) if has_config else None, named)


def _lines(path: Path, named: str) -> tuple[dict[str, Any], ...]:
    try:
        content = outside.read_bytes(path, _MAX_BYTES)
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}"
        why = "it accepts a run, a metrics.jsonl, or a JSON object of numbers"
        raise _unreadable(named, what, why, ExitCode.USAGE) from None
    text = content.decode("utf-8", errors="replace")
    whole = _parse(text)
    if whole is None:  # a torn line, such as the last one of a live run, is left out
        whole = [_parse(line) for line in text.splitlines() if line.strip()]
    values = whole if isinstance(whole, list) else [whole]
    lines = tuple(value for value in values if isinstance(value, dict))
    if not lines:
        raise _unreadable(named, f"{path} has no JSON object")
    return lines


def _parse(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _read_spec(run_dir: RunDir, named: str) -> RunSpec | None:
    """The RunSpec of the run; None if the folder has none (a prime-rl run)."""
    try:
        text = outside.read_text(run_dir.resolved, RECORD_BYTES, run_dir.path)
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


def _unreadable(
    named: str,
    what: str,
    why: str = "peak memory and step time are read from lines of JSON",
    exit_code: ExitCode = ExitCode.FINDINGS,
) -> UserError:
    fix = 'a file with {"peak_reserved_gib": 41.5, "step_s": 3.2} is enough'
    return UserError(what, f"--calibrate {named}", why, fix, exit_code)


_TIMED_STEPS = 200
_LINE_BYTES = 1024  # a line of metrics.jsonl has a few hundred


def read_run_folder(
    path: Path,
    checkpoints: Sequence[SavedCheckpoint],
    leftovers: Sequence[str] = (),
    target: StepFolder | None = None,
    step_times: Sequence[float] = (),
    save_s: tuple[float, float] | None = None,
) -> RunFolder:
    """What stands at `path`, which need not exist. `checkpoints` are newest first."""
    holder = live_holder(RunDir(path).lock)
    return RunFolder(
        path,
        str(holder) if holder is not None else "",
        tuple(leftovers),
        tuple(StepFolder(one.step, one.path, one.problem) for one in checkpoints),
        target,
        statistics.median(step_times) if step_times else None,
        len(step_times),
        save_s,
    )


def read_save_times(events: Path) -> tuple[float, float] | None:
    """Median seconds of the saves of a run: the training stands still, and from start to marker. None without saves."""
    from prime_train.events import CheckpointSaved, read  # 20 ms that `estimate` needs for no run

    try:
        saves = [record.event for record in read(events) if isinstance(record.event, CheckpointSaved)]
    except (OSError, UserError):  # the events of another user: as good as none
        return None
    if not saves:
        return None
    return statistics.median(save.stall_s for save in saves), statistics.median(save.write_s for save in saves)


def read_step_times(metrics: Path) -> list[float]:
    """Seconds of the last steps, out of a metrics.jsonl; none where the file is missing."""
    try:
        with outside.open_regular(metrics, metrics.parent) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TIMED_STEPS * _LINE_BYTES))
            lines = file.read().split(b"\n")[-_TIMED_STEPS - 1 :]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, OutsideError):
        return []
    return [seconds for line in lines if (seconds := _step_s(line)) is not None]


def _step_s(line: bytes) -> float | None:
    """The time of a step; None where the line is not a whole one."""
    try:
        seconds = parse_json(line)["step_s"]
    except (ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def times_between(checkpoints: Sequence[SavedCheckpoint]) -> list[float]:
    """Seconds of a step between each two complete checkpoints, by when their folders were last written."""
    written = [(one.step, one.path.stat().st_mtime) for one in reversed(checkpoints) if one.complete]
    return [(later - before) / (to - since) for (since, before), (to, later) in pairwise(written) if later > before]
