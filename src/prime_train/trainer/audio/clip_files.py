"""Files with compressed clips: Arrow IPC files by memory map, parquet, and folders of files with a table of labels.

An Arrow file is mapped, so a row costs the pages of one clip, and a gigabyte is never read as a whole.
Parquet has no rows that can be mapped: it is copied once, some rows at a time, into an Arrow file of the cache.
"""

from __future__ import annotations

import bisect
import contextlib
import csv
import glob
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import cache_path
from prime_train.core.rundir import make_folder, open_private
from prime_train.trainer.audio.clips import MOST_BYTES, ClipError
from prime_train.trainer.data.order import Integers

ARROW, PARQUET = ".arrow", ".parquet"
CLIPS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".oga")
MOST_FILES = 100_000
_MOST_TABLE_BYTES = 2**30  # of a table of labels
_MOST_UNPACKED_BYTES = 4 * 2**20  # that reading a mapped batch may take
_COPIED_ROWS = 64  # of a parquet file at once
NO_LABEL = -1
LABELS = "labels.csv"  # of a folder with clips

Labels = tuple[int, ...]  # none, one, or several of one clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table of clips."""

    audio: str = "audio"
    label: str | None = "label"  # None: no labels are read


@dataclass(frozen=True)  # without slots, because it holds what it has opened
class ArrowFile:
    """One Arrow IPC file, a stream as Hugging Face's cache has it, or a file with a footer. Opened when it is read."""

    path: Path
    columns: Columns
    name: str = ""  # of the file that a user knows, where this one is a copy

    @cached_property
    def _batches(self) -> list[Any]:
        return list(_read_batches(self.path, self.columns))

    @cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(batch.num_rows for batch in self._batches))

    @property
    def rows(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read_clip(self, row: int) -> memoryview:
        """The compressed bytes of a row, still in the map. Raises ClipError where it has none."""
        batch, at = self._find(row)
        scalar = batch.column(0)[at]
        value = scalar["bytes"] if pa.types.is_struct(scalar.type) and scalar.is_valid else scalar
        if not value.is_valid:
            raise ClipError("its audio is null")
        return memoryview(value.as_buffer())

    def read_labels(self, row: int) -> Labels:
        if self.columns.label is None:
            return ()
        batch, at = self._find(row)
        value = batch.column(1)[at].as_py()
        return tuple(label for label in (value if isinstance(value, list) else [value]) if label is not None)

    def list_labels(self) -> Integers:
        """The labels of all rows, one after the other, (N,)."""
        columns = [batch.column(1) for batch in self._batches] if self.columns.label is not None else []
        flat = [column.flatten() if hasattr(column, "flatten") else column for column in columns]
        # Not a row at a time: a million rows would take seconds on every rank.
        numbers = [one.drop_null().cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False) for one in flat]
        return np.concatenate([np.zeros(0, dtype=np.int64), *numbers])

    @property
    def known_name(self) -> str:
        """The name of the file that a user knows."""
        return self.name or self.path.name

    def describe(self, row: int) -> str:
        return f"{self.known_name} row {row}"

    def _find(self, row: int) -> tuple[Any, int]:
        which = bisect.bisect_right(self._ends, row)
        return self._batches[which], row - (self._ends[which - 1] if which else 0)


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

    def list_labels(self) -> Integers:
        return np.array([label for labels in self.labels for label in labels], dtype=np.int64)

    def describe(self, row: int) -> str:
        return self.files[row]


def list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        if glob.has_magic(str(path)):
            return _match_files(path)
        raise UserError("it does not exist", str(path), "data.sources names it", "give a file or a folder")
    found = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        if len(found) > MOST_FILES:
            raise _refuse_number(path)
    return [file for file in found if file.is_file()]  # also links: a snapshot of the hub has nothing else


def _match_files(pattern: Path) -> list[Path]:
    """The files that a pattern such as `clips/train-*.arrow` stands for. Raises UserError where there are none."""
    matches = glob.iglob(str(pattern), recursive=True)  # noqa: PTH207 - the pattern may be absolute
    names = list(itertools.islice(matches, MOST_FILES + 1))
    if len(names) > MOST_FILES:
        raise _refuse_number(pattern)
    found = [Path(name) for name in sorted(names) if Path(name).is_file()]
    if not found:
        raise UserError("no file has such a name", str(pattern), "data.sources names it", "give a file or a folder")
    return found


def _refuse_number(path: Path) -> UserError:
    fix = "pack the clips into Arrow files, or name a folder with fewer"
    return UserError(f"it has more than {MOST_FILES:,} files", str(path), "one source lists its files", fix)


def open_table(path: Path, columns: Columns) -> ArrowFile:
    opened = ArrowFile(path, columns)
    if path.suffix == PARQUET:
        opened = ArrowFile(_copy_parquet(path, columns), columns, name=path.name)
    opened.rows  # noqa: B018 - opens it, so that a damaged file is an error here and not in a worker
    return opened


def _read_batches(path: Path, columns: Columns) -> Iterator[Any]:
    """The record batches of a file with the columns of the clips and the labels. Raises UserError."""
    with outside.open_regular(path):  # no pipe and no device
        pass
    mapped = pa.memory_map(str(path))
    try:
        yield from _cut_columns(_open_ipc(mapped), columns, path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
        what = f"it is no whole Arrow file: {str(error).splitlines()[0][:200]}"
        why = "it is cut or damaged, and all rows are counted before a training"
        raise UserError(what, str(path), why, "copy or download it again", ExitCode.OUT_OF_REACH) from error


def _open_ipc(mapped: Any) -> Iterator[Any]:
    try:
        file = pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        yield from pa.ipc.open_stream(mapped)
        return
    for number in range(file.num_record_batches):
        yield file.get_batch(number)


def _cut_columns(batches: Iterator[Any], columns: Columns, path: Path) -> Iterator[Any]:
    allocated_bytes = pa.total_allocated_bytes()
    for batch in batches:
        # What is mapped takes no memory; what was compressed is unpacked as a whole.
        if pa.total_allocated_bytes() - allocated_bytes > max(_MOST_UNPACKED_BYTES, batch.nbytes // 2):
            what, why = "its record batches are compressed", "a row of it costs the whole batch, in every process"
            raise UserError(what, str(path), why, "write it again without compression, or as parquet")
        cut = batch.select(_find_wanted(batch.schema, columns, path))
        cut = cut.replace_schema_metadata(None)  # the names of ten thousand classes, in memory for each file
        # Offsets beyond the file would be read as clips; only a full check compares them.
        cut.validate(full=True)
        yield cut


def _find_wanted(schema: Any, columns: Columns, path: Path) -> list[str]:
    """The names of the columns that are read. Raises UserError where one is not there, or has another type."""
    wanted = [columns.audio] if columns.label is None else [columns.audio, columns.label]
    for name in wanted:
        if name not in schema.names:
            what, why = f"it has no column {name}", f"its columns are {', '.join(schema.names[:20])}"
            fix = "name the column: audio.audio_field or audio.label_field; scan has --audio-field, --label-field"
            raise UserError(what, str(path), why, fix)
    _check_audio(schema.field(columns.audio).type, columns.audio, path)
    if columns.label is not None:
        _check_label(schema.field(columns.label).type, columns.label, path)
    return wanted


def is_audio(found: Any) -> bool:
    """Whether a column of this type has compressed clips: bytes, alone or as `bytes` in a struct."""
    content = found.field("bytes").type if pa.types.is_struct(found) and found.get_field_index("bytes") >= 0 else found
    return bool(pa.types.is_binary(content) or pa.types.is_large_binary(content))


def is_label(found: Any) -> bool:
    """Whether a column of this type has labels: integers, one of a clip or a list of them."""
    inner = found.value_type if pa.types.is_list(found) or pa.types.is_large_list(found) else found
    return bool(pa.types.is_integer(inner) or pa.types.is_null(inner))


def _check_audio(found: Any, name: str, path: Path) -> None:
    if not is_audio(found):
        why = "a clip is compressed bytes, alone or as `bytes` in a struct, as Hugging Face's Audio stores it"
        fix = "write the data set with the bytes of the clips: dataset.cast_column(NAME, Audio(decode=False))"
        raise UserError(f"its column {name} is {found}", str(path), why, fix)


def _check_label(found: Any, name: str, path: Path) -> None:
    if not is_label(found):
        why = "labels are numbers from 0, one of a clip or a list of them"
        fix = f'number them: dataset = dataset.class_encode_column("{name}"), and save it again'
        raise UserError(f"its column {name} is {found}, not int64", str(path), why, fix)


def _copy_parquet(path: Path, columns: Columns) -> Path:
    """An Arrow file in the cache with the same rows, made once for each path, size and time."""
    import pyarrow.parquet as pq

    real = path.resolve()  # a snapshot of the hub has links
    status = outside.stat_regular(real, real.parent)
    # With the user, because others may have a copy of their own in a cache that is shared.
    origin = f"{os.geteuid()} {real} {status.st_size} {status.st_mtime_ns} {columns}"
    target = Path(cache_path("audio")) / f"{sha256(origin.encode()).hexdigest()[:32]}{ARROW}"
    with contextlib.suppress(FileNotFoundError):
        found = target.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():  # what another user put there is not believed
            return target
    make_folder(target.parent)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        source = pq.ParquetFile(path)
        wanted = _find_wanted(source.schema_arrow, columns, path)  # before minutes of copying
        schema = pa.schema(list(map(source.schema_arrow.field, wanted)))
        beside.unlink(missing_ok=True)  # a link with this name would lead to a file of the user's
        with open(beside, "xb", opener=open_private) as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in source.iter_batches(batch_size=_COPIED_ROWS, columns=wanted):
                writer.write_batch(batch)
        beside.replace(target)
    except (pa.ArrowInvalid, OSError) as error:
        beside.unlink(missing_ok=True)
        what = f"it cannot be copied as Arrow: {str(error).splitlines()[0][:200]}"
        why = f"it is no whole parquet file, or {target.parent} takes no more"
        raise UserError(what, str(path), why, "download it again, or see `df -h`", ExitCode.OUT_OF_REACH) from error
    return target


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
