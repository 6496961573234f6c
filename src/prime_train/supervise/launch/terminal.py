"""Runs a program on a terminal of its own, and copies what it shows to standard output. Standard library only.

python -I -S terminal.py PROGRAM [ARGUMENT...]

Some trainers print nothing, or only at their end, where their output is a pipe. SIGTERM and SIGINT go to the program,
and this process ends as it ended. The program has the columns of a wide terminal, so that no line is cut.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import signal
import struct
import sys
import termios

_ROWS, _COLUMNS = 50, 200
_CHUNK_BYTES = 64 * 1024
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    command = sys.argv[1:]
    pid, terminal = pty.fork()
    if pid == 0:
        become(command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    while chunk := read(terminal):
        write(chunk)
    # The terminal may be closed long before the end: its program may have closed it, and goes on.
    _, status = os.waitpid(pid, 0)
    end_as(os.waitstatus_to_exitcode(status))


def become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        os._exit(126 if isinstance(error, PermissionError) else 127)


def read(terminal: int) -> bytes:
    """The next output; b"" when no process has the terminal open any more."""
    try:
        return os.read(terminal, _CHUNK_BYTES)
    except OSError as error:
        if error.errno == errno.EIO:  # Linux reports the end of a terminal by this error
            return b""
        raise


def write(chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(1, left) :]


def end_as(code: int) -> None:
    if code >= 0:
        sys.exit(code)
    with contextlib.suppress(OSError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)


if __name__ == "__main__":
    main()
