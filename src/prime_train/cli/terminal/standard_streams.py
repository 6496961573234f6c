"""Standard output and standard error that are closed, full or without a reader: none of these changes what a run does.

Standard library only, because every command starts here.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

from prime_train.core.redaction import redact

# A shorter value may be a key of a JSON document or an option. The modules that quote programs mask those, too.
_SHORTEST = 8


class RedactedStream(io.TextIOBase):
    """A text stream in front of another one. Each text is masked as it is written, so a token must be in one text.

    `fits`: lines are broken between words to the width of a terminal. Standard output is not, because some results are
    files and documents, which a break would change.
    """

    def __init__(self, stream: TextIO, *, fits: bool = False) -> None:
        self._stream = stream
        self._fits = fits
        self._hidden: tuple[str, ...] | None = None

    def write(self, text: str) -> int:
        """Write the masked text. Raises TypeError for bytes, by which typer recognises a text stream."""
        if not isinstance(text, str):
            raise TypeError("text only: bytes would leave with their secrets")
        if self._hidden is None:
            from prime_train.core.redaction import own_secrets  # here: nothing is printed by many starts

            self._hidden = tuple(value for value in own_secrets() if len(value) >= _SHORTEST)
        masked = redact(text, self._hidden)
        if self._fits and self._stream.isatty():
            from prime_train.cli.terminal.render import fit_terminal  # here: only a terminal needs it

            masked = fit_terminal(masked, self._stream)
        self._stream.write(masked)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property in io.TextIOBase's stub, too
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors


def install() -> None:
    """Put a masking stream before standard output and standard error; a closed one stays None."""
    if sys.stdout is not None:
        sys.stdout = RedactedStream(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = RedactedStream(sys.stderr, fits=True)


_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE, errno.EBADF)
_STREAMS = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def open_closed() -> None:
    """Open /dev/null in place of a standard stream that the caller has closed (`>&-`).

    Without it the next file that is opened takes the number of the stream, and what is printed goes into that file.
    """
    closed = [name for name, _, _ in _STREAMS if getattr(sys, name) is None]
    for number, (name, flags, mode) in enumerate(_STREAMS):
        if name in closed:
            _open_null(number, flags)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    if "stdout" in closed:
        write_note("warning: standard output is closed, so the result of this command is not shown")


def write_note(text: str) -> None:
    """Write a line to standard error. A full or closed one loses the line and ends nothing."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def take_output_error(raised: OSError | None = None) -> OSError | None:
    """Why what was printed does not reach standard output; None if it does.

    What cannot be written is discarded, so that the interpreter does not fail on it at its end.

    `raised`: an error that may be one of standard output. An unbuffered stream keeps nothing that fails again, so a
    line break is written.
    """
    try:
        sys.stdout.flush()
        if raised is not None and raised.errno in _OUTPUT_ERRORS and raised.filename is None:
            os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        _discard(sys.stdout)
        return error
    return None


def _discard(stream: TextIO) -> None:
    """Let everything that the stream holds and will get go to /dev/null."""
    _open_null(stream.fileno(), os.O_WRONLY)


def _open_null(number: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    if null != number:
        os.dup2(null, number)
        os.close(null)
