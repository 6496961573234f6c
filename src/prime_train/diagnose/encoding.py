"""Turns the bytes of a log into UTF-8 while they arrive. Knows UTF-16 by its first two bytes."""

from __future__ import annotations

import codecs

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Encoding:
    """The encoding of one log, cut anywhere."""

    def __init__(self) -> None:
        self._start: bytes | None = b""  # None once the first two bytes came
        self._decoder: codecs.IncrementalDecoder | None = None

    @property
    def is_utf_16(self) -> bool:
        """Whether a Windows terminal wrote the log."""
        return self._decoder is not None

    def decode(self, data: bytes) -> bytes:
        """UTF-16 as UTF-8; everything else unchanged. Holds back a first byte that may be half a mark."""
        if self._start is not None and data:
            data = self._start + data
            if any(mark.startswith(data) and mark != data for mark in _MARKS):
                self._start = data
                return b""
            self._start = None
            if data.startswith(_MARKS):
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        return data if self._decoder is None else self._decoder.decode(data).encode("utf-8", "replace")

    def finish(self) -> bytes:
        """The byte that was held back."""
        held, self._start = self._start or b"", None
        return held
