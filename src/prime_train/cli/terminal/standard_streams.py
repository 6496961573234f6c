"""Standard output and standard error that are closed, full or without a reader: none of these changes what a run does.

Standard library only, because every command starts here.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

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
    """Why what was printed does not reach standard output; None if it does. What cannot be written is discarded, so
    that the interpreter does not fail on it at its end.

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
