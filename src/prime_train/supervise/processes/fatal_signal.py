"""Finds the signal that ended a process in its exit code or its log, names it and explains it. Pure: no I/O."""

from __future__ import annotations

import re
import signal

_TORCHRUN_RANK = re.compile(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*-(\d+)\b")
# Signals that follow the end of another rank: torchrun sends SIGTERM to the other ranks, and a rank's watchdog
# aborts a collective that lost a peer.
_CONSEQUENCES = (int(signal.SIGTERM), int(signal.SIGABRT))
_ABORTED = re.compile(r'Current thread [^\n]*\(most recent call first\):\n\s+File "([^"]+)", line (\d+) in (\S+)')
_MEANINGS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: ("something outside this run sent it: a person, the job scheduler or a container limit", ""),
    signal.SIGTERM: ("something outside this run requested its end: a person or the job scheduler", ""),
    signal.SIGSEGV: ("native code accessed memory that is not its own", "read the stack at the end of the log"),
    signal.SIGBUS: ("memory-mapped storage is gone or full, often /dev/shm", "look at `df -h /dev/shm` and the disk"),
    signal.SIGABRT: ("native code aborted: a failed assertion or a collective that timed out", "read the log's end"),
}


def find_killed_rank(log_tail: str) -> tuple[int, int] | None:
    """Rank and signal of the first killed rank in torchrun's summary; torchrun itself always exits with 1."""
    found = ((int(rank), int(number)) for rank, number in _TORCHRUN_RANK.findall(log_tail))
    return next(((rank, number) for rank, number in found if number not in _CONSEQUENCES), None)


def find_abort_place(log_tail: str) -> str:
    """The thread that got the fatal signal, by faulthandler: "file:line in function"; empty without such a line."""
    found = _ABORTED.findall(log_tail)
    return f"{found[-1][0]}:{found[-1][1]} in {found[-1][2]}" if found else ""


def find_signal_number(returncode: int) -> int:
    """The signal in an exit code, of the process itself (-9) or of a shell's child (137); 0 for none."""
    if returncode < 0:
        return -returncode
    return returncode - 128 if 128 < returncode <= 128 + 64 else 0


def name_signal(number: int) -> str:
    """ "9 (SIGKILL)"; only the number for a signal without a name."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def explain_signal(number: int) -> tuple[str, str]:
    """Why this signal is sent, and what to do; both empty for other signals."""
    return _MEANINGS.get(number, ("", ""))
