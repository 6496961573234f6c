"""Hands out the lines of a service's log as they come, for `--verbose-vllm`. Reads only, at most a screen at a time."""

from __future__ import annotations

import os
from pathlib import Path

from prime_train.diagnose.clean import ANSI
from prime_train.supervise.state import Child, State
from prime_train.views.printable import printable

_MOST_BYTES = 64 * 1024  # at a time; a server that writes more than a person can read is not held back by that
_LONGEST = 400  # characters of a line


class ServiceLog:
    """The log of one role, in whatever attempt lives."""

    def __init__(self, role: str = "inference") -> None:
        self._role = role
        self._path: Path | None = None
        self._offset = 0
        self._rest = b""

    def more(self, state: State) -> list[str]:
        """The lines since the last call, without colours, "inference | " before each. Of very many only the last."""
        path = next((Path(child.log) for child in _children(state) if child.role == self._role), None)
        if path != self._path:
            self._path, self._offset, self._rest = path, 0, b""
        if path is None:
            return []
        skipped, data = self._read(path)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_MOST_BYTES]
        lines = [f"... {skipped:,} bytes not shown"] if skipped else []
        lines += [printable(ANSI.sub(b"", line).decode("utf-8", "replace"))[:_LONGEST] for line in whole]
        return [f"{self._role} | {line}" for line in lines]

    def _read(self, path: Path) -> tuple[int, bytes]:
        """How many bytes were passed over, and the rest."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:
                    self._offset, self._rest = 0, b""
                skipped = max(0, size - self._offset - _MOST_BYTES)
                file.seek(self._offset + skipped)
                data = file.read(_MOST_BYTES)
        except OSError:
            return 0, b""  # not begun, or gone; the listener tells of one that cannot be read
        self._offset += skipped + len(data)
        if skipped:
            self._rest = b""
            data = data.partition(b"\n")[2]  # it begins amid a line
        return skipped, data


def _children(state: State) -> tuple[Child, ...]:
    return state.live.children if state.live is not None else ()
