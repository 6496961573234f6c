"""The table over the clips of one source or of several: which file has a row, its labels, and the rows held out.

Decodes nothing, and opens files by `clip_files`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import (
    ARROW,
    CLIPS,
    PARQUET,
    ArrowFile,
    Columns,
    Folder,
    Labels,
    list_files,
    open_folder,
    open_table,
)
from prime_train.trainer.data.order import Integers
from prime_train.trainer.draws import split

MOST_LABELS = 2**16  # of the whole table, for a model's last layer


@dataclass(frozen=True)
class ClipTable:
    """All rows of a source, one file after the other, or those that were `chosen`, in ascending order."""

    parts: tuple[ArrowFile | Folder, ...]
    ends: tuple[int, ...] = field(default=())
    chosen: Integers | None = None  # (rows,), None = all
    source_ends: tuple[int, ...] = ()  # of all rows, where there are several sources

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

    def count_labels(self) -> Integers:
        """How many clips have each label, (labels,). Raises UserError for a label that no model can have."""
        assert self.chosen is None, "labels are counted before any row is held out"
        labels = np.concatenate([part.list_labels() for part in self.parts])
        if len(labels) and not 0 <= labels.min() <= labels.max() < MOST_LABELS:
            raise self._refuse_label()
        return np.bincount(labels)

    def _refuse_label(self) -> UserError:
        """The error for the first label that no model can have."""
        every = ((row, label) for row in range(self.rows) for label in self.read_labels(row))
        row, wrong = next((row, label) for row, label in every if not 0 <= label < MOST_LABELS)
        what, why = f"{self.describe(row)} has the label {wrong}", f"a label is a number from 0 to {MOST_LABELS - 1:,}"
        return UserError(what, "data.sources", why, "number the labels from 0, without gaps")


def open_clips(path: Path, columns: Columns) -> ClipTable:
    """The table below a path: a file, or a folder with .arrow or .parquet files, or with clips and a labels.csv.

    Raises UserError in four parts.
    """
    files = list_files(path)
    tables = [file for file in files if file.suffix in (ARROW, PARQUET)]
    if tables:
        parts: tuple[ArrowFile | Folder, ...] = tuple(open_table(file, columns) for file in tables)
    else:
        clips = [file for file in files if file.suffix.lower() in CLIPS]
        parts = (open_folder(path, clips, columns),) if clips else ()
    ends = tuple(accumulate(part.rows for part in parts))
    if not ends or not ends[-1]:
        why = f"it has no rows in files of {ARROW} or {PARQUET}, and no clips ({', '.join(CLIPS)})"
        raise UserError("there is no clip", str(path), why, "give the folder of the data set, or of its .arrow files")
    return ClipTable(parts, ends)


def open_sources(paths: Sequence[Path], columns: Columns) -> ClipTable:
    """One table with the rows of several sources, one after the other. Raises UserError."""
    tables = [open_clips(path, columns) for path in paths]
    if len(tables) == 1:
        return tables[0]
    parts = tuple(part for table in tables for part in table.parts)
    source_ends = tuple(accumulate(table.rows for table in tables))
    return ClipTable(parts, tuple(accumulate(part.rows for part in parts)), source_ends=source_ends)
