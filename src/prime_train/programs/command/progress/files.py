"""Chooses the reader for a file of progress, and the kind of a file by the first bytes. Pure; opens no file."""

from __future__ import annotations

import csv
import struct

from prime_train.core.outside import parse_json
from prime_train.programs.command.progress.event_file import EventFileReader, masked_crc
from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.programs.command.progress.marks import ProgressReader
from prime_train.programs.command.progress.rows import RowReader
from prime_train.programs.command.progress.trainer_state import TrainerStateReader
from prime_train.registry.trainers import TrainerFile, TrainerLine

# The names that loggers give to the number of the step and to the loss, most specific first.
_STEPS = ("global_step", "current_steps", "global_step/max_steps", "trainer/global_step", "step", "iteration", "_step")
_TOTALS = {"current_steps": "total_steps"}
_LOSSES = ("loss", "train_loss", "train/loss", "data.train/loss", "train/ce_loss", "Loss/train", "lm loss")
_FROM_CONFIG = "the config of the run"


def open_reader(file: TrainerFile, lines: tuple[TrainerLine, ...] = ()) -> ProgressReader:
    """The reader for a file of this kind. `lines`: those of the profile, for a file with the output."""
    match file.kind:
        case "tensorboard":
            return EventFileReader(file)
        case "trainer_state":
            return TrainerStateReader(file)
        case "log":
            return LogProgress(lines)
        case _:
            return RowReader(file)


def recognise_file(path: str, head: bytes) -> TrainerFile | None:
    """What a file is by the first 64 KiB; None if no step can be read from it with certainty."""
    if len(head) >= 12 and masked_crc(head[:8]) == struct.unpack_from("<I", head, 8)[0]:
        return TrainerFile(path, "tensorboard", _FROM_CONFIG, loss=_LOSSES)
    first, _, rest = head.lstrip(b"\xef\xbb\xbf").partition(b"\n")
    names = _keys(first)
    is_state = b'"log_history"' in head or (b'"global_step"' in head and b'"max_steps"' in head)
    if is_state and (not names or "log_history" in names):  # else a row, one of which sums up the run
        needs = ("global_step", "max_steps", "log_history")
        return TrainerFile(path, "trainer_state", _FROM_CONFIG, "global_step", "max_steps", ("loss",), needs)
    if "log_type_name" in names:
        return TrainerFile(path, "torchtitan", _FROM_CONFIG)
    kind = "jsonl" if names else "csv"
    names = names or _columns(first, rest)
    step = next((name for name in _STEPS if name in names), None)
    if step is None:
        return None
    total = _TOTALS.get(step, "")
    total = total if total in names else ""
    return TrainerFile(path, "jsonl" if kind == "jsonl" else "csv", _FROM_CONFIG, step, total, loss=_LOSSES)


def _keys(line: bytes) -> list[str]:
    """The keys of a line that is a JSON object; empty for any other line."""
    try:
        row = parse_json(line, not_finite=True)
    except ValueError:
        return []
    return list(row) if isinstance(row, dict) else []


def _columns(first: bytes, rest: bytes) -> list[str]:
    """The names of the columns, if the row below the header has as many; else empty."""
    try:
        header, row = (next(csv.reader([line.decode("utf-8")]), []) for line in (first, rest.partition(b"\n")[0]))
    except (ValueError, csv.Error):
        return []
    is_table = len(header) > 1 and (len(row) == len(header) or not rest)
    return [name.strip() for name in header] if is_table else []
