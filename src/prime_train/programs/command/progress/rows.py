"""Reads files of metrics with a row for each line: JSON lines, CSV, and the structured logs of torchtitan. Pure."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from prime_train.core.outside import parse_json
from prime_train.programs.command.progress.marks import ProgressMark, parse_count, parse_number
from prime_train.registry.trainers import TrainerFile

_LONGEST_ROW = 1024 * 1024
_MOST_COLUMNS = 10_000
_LONGEST_NAME = 80
_OF_SUMMARY = "train_runtime"  # in the last row of transformers, whose train_loss is the mean of all steps
_WORK = ("step", "fwd_bwd", "optim", "fetching_batch", "post_dataloading_process", "collect_dist_metrics", "gc_collect")


class RowReader:
    """Reads a growing file. A row that is cut, longer than 1 MiB or unreadable is left out and counted."""

    def __init__(self, file: TrainerFile) -> None:
        self._file = file
        self._rest = b""
        self._header: list[str] | None = None  # of CSV
        self._has_failed = False
        self.unreadable = 0

    def feed(self, data: bytes) -> tuple[ProgressMark, ...]:
        *complete, last = data.split(b"\n")
        marks: list[ProgressMark] = []
        for piece in complete:
            marks += self._read_row(self._rest + piece)
            self._rest = b""
        self._rest = (self._rest + last)[: _LONGEST_ROW + 1]
        return tuple(marks)

    def finish(self) -> tuple[ProgressMark, ...]:
        """A last row without line feed counts: the file is complete."""
        rest, self._rest = self._rest, b""
        return tuple(self._read_row(rest))

    def _read_row(self, line: bytes) -> tuple[ProgressMark, ...]:
        if not line.strip():
            return ()
        row = None if len(line) > _LONGEST_ROW else self._parse(line)
        if row is None:
            self.unreadable += 1
            return ()
        is_span = self._file.kind == "torchtitan"
        self._has_failed |= is_span and row.get("log_type_name") == "optim_error"  # the span ends as well
        mark = read_span(row, self._file) if is_span else read_row(row, self._file)
        return () if mark is None or self._has_failed else (mark,)

    def _parse(self, line: bytes) -> Mapping[str, Any] | None:
        """The row by its keys or columns; None if it is none. The header of CSV is an empty row."""
        try:
            if self._file.kind != "csv":
                row = parse_json(line, not_finite=True)
                return row if isinstance(row, dict) else None
            cells = next(csv.reader([line.decode("utf-8")]), [])
        except (ValueError, csv.Error):
            return None
        if self._header is None:
            self._header = [cell.strip().strip("\ufeff") for cell in cells[:_MOST_COLUMNS]]
            return {}
        return dict(zip(self._header, cells, strict=True)) if len(cells) == len(self._header) else None


def read_row(row: Mapping[str, Any], file: TrainerFile) -> ProgressMark | None:
    """The step of a row of metrics; None if it has none, or not all keys that the file needs."""
    if any(look_up(row, key) is None for key in file.needs):
        return None
    step, total = _read_step(look_up(row, file.step))
    if step is None:
        return None
    total = parse_count(look_up(row, file.total)) if file.total else total
    keys = () if _OF_SUMMARY in row else file.loss
    losses = (parse_number(look_up(row, key)) for key in keys)
    loss = next((value for value in losses if value is not None), None)
    held_out = parse_number(look_up(row, "eval_loss")) if loss is None else None
    kind: Any = "step" if held_out is None else "eval"
    loss = loss if held_out is None else held_out
    grad_norm = parse_number(look_up(row, "grad_norm"))
    return ProgressMark(kind, step + file.offset, total, loss, grad_norm, unit=file.unit)


def _read_step(value: object) -> tuple[int | None, int | None]:
    """The step, and the total of a text such as "10/1000"."""
    if isinstance(value, str) and "/" in value:
        step, _, total = value.partition("/")
        return parse_count(step), parse_count(total)
    if isinstance(value, str) and (number := parse_number(value)) is not None and number.is_integer():
        return parse_count(number), None  # "12.0" of a data frame
    return parse_count(value), None


def look_up(row: Mapping[str, Any], key: str) -> Any:
    """The value of a key; else of a path with dots through tables; None if it is not there."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def read_span(row: Mapping[str, Any], file: TrainerFile) -> ProgressMark | None:
    """The step or the phase of a row of torchtitan's structured logs, which has the begin and end of each span.

    A step is done when the update is: the span of a whole step also ends where the data did. A span of a save shows
    nothing, because steps without a save have one too.
    Source: torchtitan b5bcd76c6 trainer.py, components/checkpointer/dcp.py.
    """
    name, step = row.get("log_type_name"), parse_count(row.get(file.step))
    if not isinstance(name, str):
        return None
    rank = parse_count(row.get("rank"))
    stream = "" if rank is None else f"rank{rank}"
    if name == "optim_end":
        return None if step is None else ProgressMark("step", step + file.offset, unit=file.unit, stream=stream)
    span = name.removesuffix("_start")
    if span != name and span not in _WORK:
        return ProgressMark("phase", step, phase=span[:_LONGEST_NAME], stream=stream)
    return None
