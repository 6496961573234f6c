"""Follows growing files of a trainer by their bytes. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prime_train.core import outside

_PIECE_BYTES = 1024 * 1024
_MOST_PIECES = 16  # of one file in one turn
_MOST_BEHIND_BYTES = 256 * 1024 * 1024  # if behind by more, the middle is skipped


class GrowingFile:
    """One file and how far it was read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self.skipped_bytes = 0  # that were written faster than they could be read

    def take(self, *, is_last: bool = False) -> Iterator[bytes]:
        """The new bytes in pieces. Nothing for a file that is missing or cannot be read.

        `is_last`: to its end, because there is no next turn.
        """
        with suppress(OSError), outside.open_regular(self.path) as file:
            size_bytes = file.seek(0, 2)
            if size_bytes < self._offset:  # it was replaced
                self._offset = 0
            if size_bytes - self._offset > _MOST_BEHIND_BYTES:
                self.skipped_bytes += size_bytes - _PIECE_BYTES - self._offset
                self._offset = size_bytes - _PIECE_BYTES
            file.seek(self._offset)
            for _ in range(_MOST_BEHIND_BYTES // _PIECE_BYTES if is_last else _MOST_PIECES):
                piece = file.read(_PIECE_BYTES)
                if not piece:
                    return
                self._offset += len(piece)
                yield piece
