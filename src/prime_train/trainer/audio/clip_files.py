"""Files with compressed clips and labels: Arrow IPC files by memory map, and parquet.

An Arrow file is mapped, so a row costs the pages of one clip, and a gigabyte is never read as a whole.
Parquet has no rows that can be mapped: it is copied once, some rows at a time, into an Arrow file of the cache.
"""

from __future__ import annotations

import bisect
import glob
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import cache_path
from prime_train.core.rundir import make_folder, open_private
from prime_train.trainer.audio.clips import ClipError
from prime_train.trainer.data.order import Integers

ARROW, PARQUET = ".arrow", ".parquet"
MOST_FILES = 100_000
MOST_LABELS = 2**16  # of the whole table, for a model's last layer
_MOST_UNPACKED_BYTES = 4 * 2**20  # that reading a mapped batch may take
_COPIED_ROWS = 64  # of a parquet file at once
NO_LABEL = -1
_DECLARED = b"declared"

Labels = tuple[int, ...]  # none, one, or several of one clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table of clips."""

    audio: str = "audio"
    label: str | None = "label"  # None: no labels are read


class RowLabels(NamedTuple):
    """All labels of some rows, one after the other, each with its row."""

    rows: Integers  # (N,)
    labels: Integers  # (N,)


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file whose rows were counted before, and its size and time by which it is the same one."""

    rows: int
    size_bytes: int
    modified_ns: int
    index: Path  # which is deleted where the file has other rows


@dataclass(frozen=True)  # without slots, because it holds what it has opened
class ArrowFile:
    """One Arrow IPC file, a stream as Hugging Face's cache has it, or a file with a footer. Opened when it is read."""

    path: Path
    columns: Columns
    name: str = ""  # of the file that a user knows, where this one is a copy
    known: KnownFile | None = None

    @cached_property
    def _batches(self) -> list[Any]:
        batches = list(_read_batches(self.path, self.columns))
        if self.known is not None:
            self._refuse_change(self.known, sum(batch.num_rows for batch in batches))
        return batches

    def _refuse_change(self, known: KnownFile, rows: int) -> None:
        """Raise UserError where the file is not the one whose rows were counted."""
        status = self.path.stat()
        if (rows, status.st_size, status.st_mtime_ns) != (known.rows, known.size_bytes, known.modified_ns):
            known.index.unlink(missing_ok=True)
            what, why = "it has changed since its rows were counted", "each row has its number by all files"
            raise UserError(what, str(self.path), why, "start again when nothing writes there", ExitCode.OUT_OF_REACH)

    @cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(batch.num_rows for batch in self._batches))

    @property
    def rows(self) -> int:
        if self.known is not None:
            return self.known.rows
        return self._ends[-1] if self._ends else 0

    @property
    def record_batches(self) -> int:
        return len(self._batches)

    @property
    def declared(self) -> bytes:
        """A hash of what `datasets` declares in it; empty for a file without rows."""
        return b"".join(batch.schema.metadata[_DECLARED] for batch in self._batches[:1])

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

    def list_labels(self) -> RowLabels:
        if self.columns.label is None:
            return join_labels([], [])
        return join_labels([_list_column(batch.column(1)) for batch in self._batches], [0, *self._ends])

    @property
    def known_name(self) -> str:
        """The name of the file that a user knows."""
        return self.name or self.path.name

    def describe(self, row: int) -> str:
        return f"{self.known_name} row {row}"

    def _find(self, row: int) -> tuple[Any, int]:
        which = bisect.bisect_right(self._ends, row)
        return self._batches[which], row - (self._ends[which - 1] if which else 0)


def join_labels(parts: Sequence[RowLabels], first_rows: Sequence[int]) -> RowLabels:
    """The labels of all parts; the rows of each are numbered from its first row."""
    none = np.zeros(0, dtype=np.int64)
    rows = [part.rows + first for part, first in zip(parts, first_rows, strict=False)]
    return RowLabels(np.concatenate([none, *rows]), np.concatenate([none, *(part.labels for part in parts)]))


def _list_column(column: Any) -> RowLabels:
    """The labels in a column of integers or lists. All at once, because a million rows would take seconds."""
    import pyarrow.compute as pc

    rows = np.arange(len(column))
    if hasattr(column, "flatten"):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        rows, column = np.repeat(rows, lengths.to_numpy(zero_copy_only=False)), column.flatten()
    kept = column.is_valid().to_numpy(zero_copy_only=False)
    labels = column.drop_null().cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
    return RowLabels(rows[kept], labels)


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
    opened = _find_arrow(path, columns)
    opened.rows  # noqa: B018 - opens it, so that a damaged file is an error here and not in a worker
    return opened


def recall_table(path: Path, columns: Columns, rows: int, index: Path) -> ArrowFile:
    """A file with so many rows by an index. It is opened when a row is read."""
    file = _find_arrow(path, columns)
    status = file.path.stat()
    return replace(file, known=KnownFile(rows, status.st_size, status.st_mtime_ns, index))


def _find_arrow(path: Path, columns: Columns) -> ArrowFile:
    if path.suffix == PARQUET:
        return ArrowFile(_copy_parquet(path, columns), columns, name=path.name)
    return ArrowFile(path, columns)


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
        # Not the names of ten thousand classes, which would be in memory for each file.
        declared = (batch.schema.metadata or {}).get(b"huggingface", b"")
        cut = cut.replace_schema_metadata({_DECLARED: sha256(declared).digest()})
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
    if is_own(target):
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


def is_own(path: Path) -> bool:
    """Whether it is a file of this user: what another one put into a cache is not believed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
