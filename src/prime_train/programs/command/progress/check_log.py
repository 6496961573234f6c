"""Reads one log, or a file of metrics, and lists what is known of the run and what is not. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prime_train.core import outside
from prime_train.programs.command.progress.files import open_reader, recognise_file
from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.programs.command.progress.marks import ProgressMark, ProgressReader
from prime_train.programs.command.progress.recognise_log import LogTrainer, recognise_log
from prime_train.programs.command.progress.series import LogSummary, summarise
from prime_train.registry.trainers import launcher_lines, trainer_profile

_CHUNK_BYTES = 1024 * 1024
_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class CheckedLog:
    """`trainer`: the profile, empty where none takes a line. `kind`: "log", or the kind of a file of metrics.

    `taken`: profile -> lines that it was the first to take. `unknown`: what the log does not show, a sentence each.
    """

    path: str
    kind: str
    trainer: str
    lines: int
    taken: dict[str, int]
    summary: LogSummary
    unknown: tuple[str, ...]


def check_log(path: Path, trainer: str = "") -> CheckedLog:
    """What one log shows. `trainer`: the profile to read it by; empty finds it. Raises OSError if it is not read."""
    with outside.open_regular(path) as file:
        metrics = None if trainer else recognise_file(str(path), file.read(_HEAD_BYTES))
    if metrics is not None:
        summary = _read(path, open_reader(metrics))
        return CheckedLog(str(path), metrics.kind, "", 0, {}, summary, _list_unknown("", summary))
    found = LogTrainer(trainer, {}, 0) if trainer else recognise_log(_chunks(path))
    if not found.name:
        nothing = LogSummary()
        return CheckedLog(str(path), "log", "", found.lines, dict(found.taken), nothing, ())
    profile = trainer_profile(found.name)
    reader = LogProgress((*profile.lines, *launcher_lines()), profile.phases)
    summary = _read(path, reader)
    unknown = _list_unknown(found.name, summary)
    return CheckedLog(str(path), "log", found.name, found.lines, dict(found.taken), summary, unknown)


def _read(path: Path, reader: ProgressReader) -> LogSummary:
    return summarise(_marks(path, reader))


def _marks(path: Path, reader: ProgressReader) -> Iterator[ProgressMark]:
    for chunk in _chunks(path):
        yield from reader.feed(chunk)
    yield from reader.finish()


def _chunks(path: Path) -> Iterator[bytes]:
    with outside.open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _list_unknown(name: str, summary: LogSummary) -> tuple[str, ...]:
    """What a supervisor would not know from this log alone."""
    unknown = []
    profile = trainer_profile(name) if name else None
    has_bars = profile is not None and any(line.total_is_last for line in profile.lines)
    if summary.steps is None:
        why = "no progress bar is certain to be that of the training" if has_bars else "no line known here has one"
        unknown.append(f"the step: {why}")
    elif summary.steps.total is None:
        unknown.append("the last step: no line known here has it")
    if summary.losses is None:
        unknown.append("the loss: no line known here has it")
    elif summary.kinds["loss"]:
        unknown.append("the step of each loss: it is not read from the line of a loss")
    if summary.saves_begun > summary.saves_done:
        unknown.append("whether each save was completed: no line shows it, so the files are judged")
    elif not summary.saves_begun + summary.saves_done:
        unknown.append("whether it saves: no line shows it")
    if find_end(name, summary) is None:
        unknown.append("whether it finished: exit code 0 alone does not show it")
    return tuple(unknown)


def find_end(name: str, summary: LogSummary) -> str | None:
    """How the run ended, where the log shows it with certainty; else None."""
    steps = summary.steps
    if steps is not None and steps.total is not None and steps.last >= steps.total:  # batches have no total
        return f"finished: {steps.last} of {steps.total} {steps.unit}s"
    end_says_it = bool(name) and trainer_profile(name).exits.end_line
    if end_says_it and summary.has_end_line and not summary.kinds["stop"]:
        return "finished: it printed the last line, and no stop"
    return None
