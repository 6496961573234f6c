"""Reads trainer_state.json, which transformers writes into each checkpoint. Pure."""

from __future__ import annotations

from typing import Any

from prime_train.core.outside import parse_json
from prime_train.programs.command.progress.marks import ProgressMark, parse_count
from prime_train.programs.command.progress.rows import read_row
from prime_train.registry.trainers import TrainerFile

_LARGEST = 256 * 1024 * 1024
_ROW = "step"


class TrainerStateReader:
    """Reads the whole file at the end: it is replaced at each save, and does not grow."""

    def __init__(self, file: TrainerFile) -> None:
        self._file = file
        self._data = bytearray()
        self.unreadable = 0

    def feed(self, data: bytes) -> tuple[ProgressMark, ...]:
        self._data += data[: _LARGEST + 1 - len(self._data)]
        return ()

    def finish(self) -> tuple[ProgressMark, ...]:
        """The rows of the history, then the step of the state itself. A file that is cut has none."""
        state = self._parse()
        if state is None:
            self.unreadable = 1
            return ()
        total = parse_count(state.get(self._file.total))
        history = state.get("log_history")
        rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
        row_file = self._file._replace(step=_ROW, total="", needs=())
        marks = [mark for row in rows if (mark := read_row(row, row_file)) is not None]
        step = parse_count(state.get(self._file.step))
        if step is not None and (not marks or marks[-1].step != step or marks[-1].kind != "step"):
            marks.append(ProgressMark("step", step, total, unit=self._file.unit))
        return tuple(marks)

    def _parse(self) -> dict[str, Any] | None:
        if len(self._data) > _LARGEST:
            return None
        try:
            state = parse_json(bytes(self._data), not_finite=True)
        except ValueError:
            return None
        has_all = isinstance(state, dict) and all(key in state for key in self._file.needs)
        return state if has_all else None
