"""Runs a launcher or a server as a child, and ends its whole tree if the supervisor dies. Standard library only.

python -I -S guard.py PROGRAM [ARGUMENT...]

prime-rl's processes outlive a killed launcher, vLLM's engine core outlives its API server, and both hold their GPUs,
because only their own signal handlers end them (prime-rl, entrypoints/rl.py). The kernel signals this process when the
supervisor ends, and gives it every orphan below it, so it can end them all. SIGTERM and SIGINT go only to the child, as
prime-rl expects. This process exits with the exit code of the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANED = signal.SIGUSR1
SUPERVISOR = "PRIME_TRAIN_SUPERVISOR"  # "PID:START_TICKS", as the supervisor marks its children


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(_ORPHANED, lambda *_: end_all())
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, int(_ORPHANED), 0, 0, 0)
    if os.environ.get(SUPERVISOR, "").partition(":")[0] != str(os.getppid()):  # the supervisor died before prctl
        sys.exit(1)
    launcher = start(sys.argv[1:])
    while True:  # orphans are reaped as well
        pid, status = os.waitpid(-1, 0)
        if pid == launcher:
            end_as(os.waitstatus_to_exitcode(status))


def start(command: list[str]) -> int:
    """Start the launcher and forward SIGTERM and SIGINT, which are blocked until it runs. Returns its pid."""
    forwarded = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores them, and its children would inherit that
    try:
        pid = os.posix_spawnp(command[0], command, os.environ, setsigdef=ignored, setsigmask=before)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended, and waitpid has its exit code
            os.kill(pid, number)

    for number in forwarded:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def end_as(code: int) -> None:
    """End as the launcher ended: with the same exit code, or by the same signal."""
    if code >= 0:
        sys.exit(code)
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)


def end_all() -> None:
    """End every process below this one. Further signals are ignored, because the kernel sends one for each thread of
    the supervisor."""
    signal.signal(_ORPHANED, signal.SIG_IGN)
    while found := list_below(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    os._exit(1)


def list_below(root: int) -> list[int]:
    """Every live process below `root`. Source: proc_pid_stat(5), fields 3, 4 and 20.

    A process whose first thread has ended is listed as a zombie, but still has other threads and children.
    """
    parents: dict[int, int] = {}
    living: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                if fields[0] not in "ZX" or int(fields[17]) > 1:
                    living.add(int(entry.name))
    found: list[int] = []
    fresh = {root}
    while fresh := {pid for pid, parent in parents.items() if parent in fresh}:
        found += fresh & living
    return found


if __name__ == "__main__":
    main()
