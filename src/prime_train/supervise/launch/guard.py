"""Runs a launcher or a server as a child, and ends its whole tree where the supervisor dies. Standard library only.

python -I -S guard.py PROGRAM [ARGUMENT...]

prime-rl's parts outlive a launcher that is killed, and vLLM's engine core its API server, and hold their GPUs: their
own handlers alone end them (prime-rl, entrypoints/rl.py). This process gets a signal from the kernel when the
supervisor ends, and every orphan below it, so that it can end them all. Signals to end go to the child alone, as
prime-rl expects; its exit code is handed on.
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
    if os.environ.get(SUPERVISOR, "").partition(":")[0] != str(os.getppid()):  # it died before that was set
        sys.exit(1)
    launcher = spawned(sys.argv[1:])
    while True:  # orphans are reaped as well
        pid, status = os.waitpid(-1, 0)
        if pid == launcher:
            end_as(os.waitstatus_to_exitcode(status))


def spawned(command: list[str]) -> int:
    """The launcher's pid. Signals to end wait until there is somebody to hand them on to."""
    handed_on = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # by Python, and what it starts would ignore them too
    try:
        pid = os.posix_spawnp(command[0], command, os.environ, setsigdef=ignored, setsigmask=before)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)
    for number in handed_on:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def end_as(code: int) -> None:
    """End as the launcher did: with its exit code, or by the signal that it was killed by."""
    if code >= 0:
        sys.exit(code)
    with contextlib.suppress(OSError):  # SIGKILL has no handler to be taken back
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)


def end_all() -> None:
    """The supervisor is gone: leave no process behind.

    The kernel sends its signal once for each thread of the supervisor that ends, and one call is enough.
    """
    signal.signal(_ORPHANED, signal.SIG_IGN)
    while found := below(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    os._exit(1)


def below(root: int) -> list[int]:
    """Every living process below this one. Source: proc_pid_stat(5), fields 3, 4 and 20.

    A process whose first thread has ended counts as a zombie there, and has its children still.
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
