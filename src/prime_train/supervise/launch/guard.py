"""Runs a program as a child, and ends its whole tree if the supervisor dies. Standard library only.

python -I -S guard.py [--report FD SUPERVISOR_PID] PROGRAM [ARGUMENT...]

Without it a daemon of the trainer, prime-rl's processes and vLLM's engine core outlive a killed supervisor and hold
their GPUs, because only their own signal handlers end them (prime-rl, entrypoints/rl.py). The kernel signals this
process when the supervisor ends, and gives it every orphan below it, so it can end them all. SIGTERM and SIGINT go only
to the child, as prime-rl expects. This process exits with the exit code of the child.

With --report the child leads a session of its own, and FD gets "PID:START_TICKS" of the child, or "errno NUMBER" if it
cannot be forked.
"""

# Importing pathlib takes a megabyte and a tenth of the start, and each trainer has a guard as long as it runs.

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANED = signal.SIGUSR1
_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # a child would inherit that
_FORK_LIMIT_S, _FORK_PAUSE_S = 10.0, 0.1  # while the system has no room for another process
SUPERVISOR = "PRIME_TRAIN_SUPERVISOR"  # "PID:START_TICKS", as the supervisor marks its children


def main() -> None:
    report, supervisor, command = -1, os.environ.get(SUPERVISOR, "").partition(":")[0], sys.argv[1:]
    if command[0] == "--report":
        report, supervisor, command = int(command[1]), command[2], command[3:]
        os.set_inheritable(report, False)
    # The handler first: the default action of this signal ends a process, also this one.
    signal.signal(_ORPHANED, lambda *_: end_if_orphaned(supervisor))
    call_prctl(_PR_SET_CHILD_SUBREAPER, 1)
    call_prctl(_PR_SET_PDEATHSIG, int(_ORPHANED))
    if str(os.getppid()) != supervisor:  # the supervisor died before prctl
        sys.exit(1)
    launcher = start(command, report)
    while True:  # orphans are reaped as well
        pid, status = os.waitpid(-1, 0)
        if pid == launcher:
            end_as(os.waitstatus_to_exitcode(status))


def call_prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def end_if_orphaned(supervisor: str) -> None:
    """End all if the supervisor is gone.

    Others send this signal too: Slurm, to every process of a job step. The kernel sends it for each thread of the
    supervisor that ends, and after the last one the parent is another one.
    """
    if str(os.getppid()) != supervisor:
        end_all()


def start(command: list[str], report: int = -1) -> int:
    """Start the program and forward SIGTERM and SIGINT, which are blocked until it runs. Returns its pid."""
    # A SIGTERM between fork and the handler would end the guard, and leave the program without one.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    guard = os.getpid()
    try:
        pid = fork()
    except OSError as error:
        if report >= 0:
            os.write(report, f"errno {error.errno}\n".encode())
        sys.stderr.write(f"no process can be started: {error.strerror}\n")
        sys.exit(126)
    if pid == 0:
        become(command, guard, before, own_session=report >= 0)
    if report >= 0:
        os.write(report, f"{pid}:{read_stat(pid)[19]}\n".encode())  # not reaped yet, so it has an entry in /proc
        os.close(report)

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended, and waitpid has its exit code
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def fork() -> int:
    """os.fork, tried again while the system has no room for another process. Raises OSError."""
    give_up_s = time.monotonic() + _FORK_LIMIT_S
    while True:
        try:
            return os.fork()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM) or time.monotonic() > give_up_s:
                raise
        time.sleep(_FORK_PAUSE_S)


def become(command: list[str], guard: int, mask: set[int | signal.Signals], *, own_session: bool) -> None:
    """In the child: become the program, which the kernel ends with this process's parent."""
    try:
        call_prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != guard:
            os._exit(1)
        if own_session:
            os.setsid()
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        os._exit(126 if isinstance(error, PermissionError) else 127)
    finally:
        os._exit(127)  # only an exception that is no OSError comes here: it must not run the code of the guard


def end_as(code: int) -> None:
    """End as the launcher ended: with the same exit code, or by the same signal."""
    if code >= 0:
        sys.exit(code)
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)


def end_all() -> None:
    """End every process below this one. Further signals are ignored."""
    signal.signal(_ORPHANED, signal.SIG_IGN)
    # Until none is left, because a process that is found may fork before its signal arrives.
    while found := list_below(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    os._exit(1)


def read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from field 3 on. Raises OSError."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def list_below(root: int) -> list[int]:
    """Every live process below `root`.

    Source: proc_pid_stat(5), fields 3, 4 and 20. A process whose first thread has ended is listed as a zombie, but
    still has other threads and children.
    """
    parents: dict[int, int] = {}
    living: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = read_stat(int(entry.name))
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
