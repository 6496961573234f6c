"""The table over the clips of one source or of several: which file has a row, its labels, and the rows held out.

Decodes nothing, and opens files by `clip_files` and `clip_folders`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import (
    ARROW,
    MOST_LABELS,
    PARQUET,
    ArrowFile,
    Columns,
    Labels,
    RowLabels,
    join_labels,
    list_files,
    open_table,
    recall_table,
)
from prime_train.trainer.audio.clip_folders import CLIPS, Folder, open_folder
from prime_train.trainer.audio.row_index import LEAST_BATCHES, IndexedFiles, RowIndex, find_index
from prime_train.trainer.data.order import Integers
from prime_train.trainer.draws import split


@dataclass(frozen=True)
class ClipTable:
    """All rows of a source, one file after the other, or those that were `chosen`, in ascending order."""

    parts: tuple[ArrowFile | Folder, ...]
    ends: tuple[int, ...] = field(default=())
    chosen: Integers | None = None  # (rows,), None = all
    source_ends: tuple[int, ...] = ()  # of all rows, where there are several sources
    counted: Integers | None = None  # clips with each label, (labels,); None = not counted yet

    @property
    def rows(self) -> int:
        if self.chosen is not None:
            return len(self.chosen)
        return self.ends[-1] if self.ends else 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each file, and the number of all rows."""
        return self._find_chosen((0, *self.ends))

    @property
    def source_starts(self) -> tuple[int, ...]:
        """The first row of each source, and the number of all rows."""
        return self._find_chosen((0, *(self.source_ends or self.ends[-1:])))

    def _find_chosen(self, at: tuple[int, ...]) -> tuple[int, ...]:
        return at if self.chosen is None else tuple(np.searchsorted(self.chosen, at).tolist())

    @cached_property
    def identity(self) -> str:
        """A hash of what gives a row its number: the names of all files and their rows."""
        named = [(part.files if isinstance(part, Folder) else part.known_name, part.rows) for part in self.parts]
        return sha256(repr((named, self.source_ends) if self.source_ends else named).encode()).hexdigest()[:16]

    def read_clip(self, row: int) -> bytes | memoryview:
        part, at = self._find(row)
        return part.read_clip(at)

    def read_labels(self, row: int) -> Labels:
        part, at = self._find(row)
        return part.read_labels(at)

    def describe(self, row: int) -> str:
        part, at = self._find(row)
        source = bisect.bisect_right(self.source_ends, self._number(row))
        # Two sources may have files with the same name.
        return f"data.sources.{source}: {part.describe(at)}" if self.source_ends else part.describe(at)

    def _number(self, row: int) -> int:
        """The number of a row among all rows."""
        return row if self.chosen is None else int(self.chosen[row])

    def _find(self, row: int) -> tuple[ArrowFile | Folder, int]:
        at = self._number(row)
        which = bisect.bisect_right(self.ends, at)
        return self.parts[which], at - (self.ends[which - 1] if which else 0)

    def hold_out(self, ratio: float) -> tuple[ClipTable, ClipTable]:
        """(the rows of a training, those that no batch has): the same ones for every seed. With ratio 0 all train.

        Raises UserError where no clip would be held out.
        """
        if not ratio:
            return self, replace(self, chosen=np.arange(0))
        kept, held = split(self.rows, ratio, 0, 0)
        if not len(held):
            what, why = "there is one clip, so none is held out", "an evaluation needs clips that no batch has"
            raise UserError(what, "eval.held_out_ratio", why, "give more clips")
        return replace(self, chosen=kept), replace(self, chosen=held)

    def list_labels(self, parts: Sequence[int] | None = None) -> RowLabels:
        """All labels, or those in some files alone."""
        assert self.chosen is None, "labels are listed before any row is held out"
        numbers = range(len(self.parts)) if parts is None else parts
        starts = (0, *self.ends)
        return join_labels([self.parts[at].list_labels() for at in numbers], [starts[at] for at in numbers])

    def count_labels(self) -> Integers:
        """How many clips have each label, (labels,). Raises UserError for a label that no model can have."""
        if self.counted is not None:
            return self.counted
        rows, labels = self.list_labels()
        wrong = np.flatnonzero((labels < 0) | (labels >= MOST_LABELS))
        if len(wrong):
            what = f"{self.describe(int(rows[wrong[0]]))} has the label {labels[wrong[0]]}"
            why, fix = f"a label is a number from 0 to {MOST_LABELS - 1:,}", "number the labels from 0, without gaps"
            raise UserError(what, "data.sources", why, fix)
        return np.bincount(labels)


def open_clips(path: Path, columns: Columns) -> ClipTable:
    """The table below a path: a file, or a folder with .arrow or .parquet files, or with clips and a labels.csv.

    Raises UserError in four parts.
    """
    files = list_files(path)
    tables = [file for file in files if file.suffix in (ARROW, PARQUET)]
    if tables:
        table = _open_tables(find_index(path, tables, columns), tables, columns)
    else:
        clips = [file for file in files if file.suffix.lower() in CLIPS]
        table = _join_parts([open_folder(path, clips, columns)] if clips else [])
    if not table.rows:
        why = f"it has no rows in files of {ARROW} or {PARQUET}, and no clips ({', '.join(CLIPS)})"
        raise UserError("there is no clip", str(path), why, "give the folder of the data set, or of its .arrow files")
    return table


def _join_parts(parts: Sequence[ArrowFile | Folder]) -> ClipTable:
    return ClipTable(tuple(parts), tuple(accumulate(part.rows for part in parts)))


def _open_tables(indexed: IndexedFiles, files: Sequence[Path], columns: Columns) -> ClipTable:
    """The table of files by their index, or by opening each of them, which then makes the index."""
    if (known := indexed.read()) is not None:
        counted = zip(files, known.rows, strict=True)
        table = _join_parts([recall_table(file, columns, rows, indexed.target) for file, rows in counted])
        return replace(table, counted=known.labels)
    parts = [open_table(file, columns) for file in files]
    table = _join_parts(parts)
    if sum(part.record_batches for part in parts) >= LEAST_BATCHES:
        # A copy of parquet lacks what the file declares.
        alike = all(file.suffix == ARROW for file in files) and len({part.declared for part in parts}) == 1
        with suppress(UserError):  # of a wrong label, which only a run refuses that reads labels
            indexed.write(RowIndex(tuple(part.rows for part in parts), table.count_labels(), alike))
    return table


def open_sources(paths: Sequence[Path], columns: Columns) -> ClipTable:
    """One table with the rows of several sources, one after the other. Raises UserError."""
    tables = [open_clips(path, columns) for path in paths]
    if len(tables) == 1:
        return tables[0]
    parts = tuple(part for table in tables for part in table.parts)
    source_ends = tuple(accumulate(table.rows for table in tables))
    return replace(_join_parts(parts), source_ends=source_ends, counted=_add_counts([one.counted for one in tables]))


def _add_counts(counts: Sequence[Integers | None]) -> Integers | None:
    """The clips with each label in all sources; None where one was not counted."""
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    total = np.zeros(max(map(len, known)), dtype=np.int64)
    for count in known:
        total[: len(count)] += count
    return total
