"""Follows the files in which a trainer writes its progress: those of its profile, and the one that run.toml names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES
from prime_train.programs.command.files import GrowingFile
from prime_train.programs.command.progress.files import open_reader, recognise_file
from prime_train.programs.command.progress.marks import ProgressMark, ProgressReader
from prime_train.programs.command.trainer import KnownTrainer
from prime_train.registry.trainers import TrainerFile

_HEAD_BYTES = 64 * 1024
_MOST_FILES = 64  # that are followed at once
_EVENT_FILES = "events.out.tfevents.*"  # in a folder of TensorBoard

Version = tuple[int, int, int]


class ProgressFiles:
    """All files with the progress of one attempt. What stood in them before it is no progress of it."""

    def __init__(self, trainer: KnownTrainer) -> None:
        self._trainer = trainer
        self._before: dict[Path, int] = {}  # size at the start of the attempt
        self._growing: dict[Path, tuple[GrowingFile, ProgressReader]] = {}
        self._whole: dict[Path, Version] = {}  # of files that are replaced each time

    def prepare(self) -> None:
        """Note what is there before the attempt starts."""
        for path, _ in self._list():
            with suppress(OSError):
                status = path.stat()
                self._before[path] = status.st_size
                self._whole[path] = (status.st_ino, status.st_mtime_ns, status.st_size)

    def take(self, *, is_last: bool) -> Iterator[ProgressMark]:
        for path, file in self._list():
            if file.kind == "trainer_state":
                yield from self._take_whole(path, file)
                continue
            if path not in self._growing:
                if len(self._growing) >= _MOST_FILES:
                    continue
                before = self._before.get(path, 0)
                reader = open_reader(file, self._trainer.lines)
                if before and file.kind == "csv":
                    reader.feed(_read_header(path))  # the rows of this attempt follow those of earlier ones
                self._growing[path] = (GrowingFile(path, before), reader)
        for growing, reader in self._growing.values():
            for piece in growing.take(is_last=is_last):
                yield from reader.feed(piece)
            if is_last:
                yield from reader.finish()

    def _take_whole(self, path: Path, file: TrainerFile) -> Iterator[ProgressMark]:
        """The marks of a file that the trainer replaces. It is read again when it has changed."""
        with suppress(OSError):
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._whole.get(path) == version:
                return
            self._whole[path] = version
            reader = open_reader(file)
            yield from reader.feed(outside.read_bytes(path, RECORD_BYTES))
            yield from reader.finish()

    def _list(self) -> Iterator[tuple[Path, TrainerFile]]:
        """The files that exist now, each with its description."""
        named = self._trainer.progress_file
        if named is not None:
            found = sorted(named.glob(_EVENT_FILES)) if named.is_dir() else [named]
            for path in found[-_MOST_FILES:]:
                file = _recognise(path)
                if file is not None:
                    yield path, file
        folder = self._trainer.checkpoints
        for file in self._trainer.files:
            if folder is None and "{dir}" in file.path:
                continue
            pattern = file.path.removeprefix("{dir}/")
            base = folder if folder is not None and "{dir}" in file.path else self._trainer.cwd
            for path in islice(sorted(base.glob(pattern)), _MOST_FILES):
                inner = sorted(path.glob(_EVENT_FILES)) if file.kind == "tensorboard" and path.is_dir() else [path]
                yield from ((one, file) for one in inner)


def _read_header(path: Path) -> bytes:
    """The first line of a table; empty for a file that cannot be read."""
    with suppress(OSError), outside.open_regular(path) as file:
        return file.readline(_HEAD_BYTES)
    return b""


def _recognise(path: Path) -> TrainerFile | None:
    with suppress(OSError), outside.open_regular(path) as file:
        return recognise_file(str(path), file.read(_HEAD_BYTES))
    return None
