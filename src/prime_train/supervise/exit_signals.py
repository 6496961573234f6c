"""Reads out of a log's end which process was killed, and says what a signal means. Pure."""

from __future__ import annotations

import re
import signal

_TORCHRUN_RANK = re.compile(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*-(\d+)\b")
# A process that was killed is never the echo of another one's end. SIGTERM is: torchrun sends it to
# the other ranks; and so is SIGABRT, by which a rank's watchdog ends a collective that lost a peer.
_ECHOES = (int(signal.SIGTERM), int(signal.SIGABRT))
_ABORTED = re.compile(r'Current thread [^\n]*\(most recent call first\):\n\s+File "([^"]+)", line (\d+) in (\S+)')
_MEANINGS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "something outside this run sent it: a person, the job scheduler, or a limit of the container",
        "",
    ),
    signal.SIGTERM: ("something outside this run asked it to end: a person or the job scheduler", ""),
    signal.SIGSEGV: ("native code touched memory that is not its own", "read the stack at the end of the log"),
    signal.SIGBUS: ("memory-mapped storage is gone or full, often /dev/shm", "look at `df -h /dev/shm` and the disk"),
    signal.SIGABRT: ("native code gave up: a failed assertion or a collective that timed out", "read the log's end"),
}
OOM_KILLER = "kernel_oom_killer"  # the cause_id of an attempt that the kernel's out-of-memory killer ended
# Native code ends itself by these where something failed, and most often says what.
BY_ITSELF = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})


def killed_rank(log_tail: str) -> tuple[int, int] | None:
    """Rank and signal of the first killed rank in torchrun's summary, whose own exit code is always 1."""
    found = ((int(rank), int(number)) for rank, number in _TORCHRUN_RANK.findall(log_tail))
    return next(((rank, number) for rank, number in found if number not in _ECHOES), None)


def aborted_at(log_tail: str) -> str:
    """Where faulthandler found the thread that got the fatal signal: "file:line in function"; empty if it did not."""
    found = _ABORTED.findall(log_tail)
    return f"{found[-1][0]}:{found[-1][1]} in {found[-1][2]}" if found else ""


def number_of(returncode: int) -> int:
    """The signal that an exit code tells of, of the process itself (-9) or of a shell's child (137); 0 for none."""
    if returncode < 0:
        return -returncode
    return returncode - 128 if 128 < returncode <= 128 + 64 else 0


def name_of(number: int) -> str:
    """ "9 (SIGKILL)"; the number alone for one without a name."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def meaning(number: int) -> tuple[str, str]:
    """Why such a signal comes, and what to do; both empty where that is not known."""
    return _MEANINGS.get(number, ("", ""))
