"""Folders of files, each with one clip, and the table of their labels. Decodes nothing."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import Columns, Labels, RowLabels
from prime_train.trainer.audio.clips import MOST_BYTES, ClipError

CLIPS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".oga")
LABELS = "labels.csv"
_MOST_TABLE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of clips, each with the labels of a table `labels.csv` with the columns path and label.

    `absent`: the paths in the table of files that are not there.
    """

    root: Path
    files: tuple[str, ...]
    labels: tuple[Labels, ...]
    absent: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.files)

    def read_clip(self, row: int) -> bytes:
        try:
            return outside.read_bytes(self.root / self.files[row], MOST_BYTES, within=self.root)
        except OSError as error:
            raise ClipError(f"it cannot be read: {error.strerror}") from error

    def read_labels(self, row: int) -> Labels:
        return self.labels[row]

    def list_labels(self) -> RowLabels:
        found = [(row, label) for row, labels in enumerate(self.labels) for label in labels]
        return RowLabels(*np.array(found, dtype=np.int64).reshape(-1, 2).T)

    def describe(self, row: int) -> str:
        return self.files[row]


def open_folder(root: Path, files: Sequence[Path], columns: Columns) -> Folder:
    names = tuple(str(file.relative_to(root)) if root.is_dir() else file.name for file in files)
    folder = root if root.is_dir() else root.parent
    if columns.label is None:
        return Folder(folder, names, ((),) * len(names))
    table = folder / LABELS
    labels = _read_labels(table, columns.label)
    unknown = [name for name in names if name not in labels]
    if unknown:
        what = f"it has no row for {len(unknown):,} of {len(names):,} clips, the first is {unknown[0]}"
        fix = "add a row PATH,LABEL for each clip; with an empty LABEL it has none"
        raise UserError(what, str(table), "each clip of the folder has a row", fix)
    absent = tuple(sorted(labels.keys() - set(names)))
    return Folder(folder, names, tuple(labels[name] for name in names), absent)


def _read_labels(table: Path, column: str) -> dict[str, Labels]:
    """The labels of each path. A cell has none, one, or several numbers with spaces between them."""
    found: dict[str, Labels] = {}
    try:
        text = outside.read_text(table, _MOST_TABLE_BYTES)
    except (OSError, ValueError) as error:
        why = "a folder with clips has labels in a table with the columns path and label"
        fix = 'write it, or without labels: audio.label_field = "", and --no-labels for a scan'
        cause = getattr(error, "strerror", None) or "it is no UTF-8"
        raise UserError(f"it cannot be read: {cause}", str(table), why, fix) from error
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        cell = row.get(column)
        if row.get("path") is None or cell is None:
            what, why = f"its line {number} has no path or no {column}", "its first line names the columns"
            raise UserError(what, str(table), why, f"begin it with path,{column}")
        try:
            labels = tuple(int(word) for word in cell.split())
        except ValueError as error:
            what = f"its line {number} has the label {cell[:80]!r}"
            fix = "number the labels from 0, and keep their names in another column"
            raise UserError(what, str(table), "labels are numbers from 0", fix) from error
        if found.setdefault(row["path"], labels) != labels:
            what = f"its line {number} has other labels for {row['path']} than one before"
            raise UserError(what, str(table), "a clip has one row", "put all labels of a clip into its row")
    return found
