"""Reads new lines of a service's log, for `--verbose-vllm`. Writes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from prime_train.diagnose.clean import ANSI
from prime_train.supervise.state import Child, State
from prime_train.views.printable import sanitize

_MOST_BYTES = 64 * 1024  # per read; earlier text is skipped
_LONGEST = 400  # characters of a line


class ServiceLog:
    """The log of one role in the live attempt."""

    def __init__(self, role: str = "inference") -> None:
        self._role = role
        self._path: Path | None = None
        self._offset = 0
        self._rest = b""

    def more(self, state: State) -> list[str]:
        """The lines since the last call, without colours, each after "inference | ". Only the last _MOST_BYTES."""
        path = next((Path(child.log) for child in _children(state) if child.role == self._role), None)
        if path != self._path:
            self._path, self._offset, self._rest = path, 0, b""
        if path is None:
            return []
        skipped, data = self._read(path)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_MOST_BYTES]
        lines = [f"... {skipped:,} bytes not shown"] if skipped else []
        lines += [sanitize(ANSI.sub(b"", line).decode("utf-8", "replace"))[:_LONGEST] for line in whole]
        return [f"{self._role} | {line}" for line in lines]

    def _read(self, path: Path) -> tuple[int, bytes]:
        """The number of skipped bytes, and the new bytes."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:
                    self._offset, self._rest = 0, b""
                skipped = max(0, size - self._offset - _MOST_BYTES)
                file.seek(self._offset + skipped)
                data = file.read(_MOST_BYTES)
        except OSError:
            return 0, b""  # missing or unreadable; the log follower reports an unreadable log
        self._offset += skipped + len(data)
        if skipped:
            self._rest = b""
            data = data.partition(b"\n")[2]  # the first line is incomplete
        return skipped, data


def _children(state: State) -> tuple[Child, ...]:
    return state.live.children if state.live is not None else ()
