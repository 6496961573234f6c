"""Makes the kernel end this process with the supervisor, then becomes the trainer. Standard library only.

python -I -S shim.py SUPERVISOR_PID GROUP PROGRAM [ARGUMENT...]

GROUP is the control group of the attempt; "" for none.
"""

# Importing pathlib takes a tenth of the start of each program.

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; exec keeps it


def main() -> None:
    supervisor, group = int(sys.argv[1]), sys.argv[2]
    program = sys.argv[3:]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != supervisor:  # the supervisor ended before prctl
        sys.exit("the supervisor is gone")
    if group:
        # Without it the mark in the environment is still there.
        with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Loader workers share tensors by file descriptors; the usual soft limit of 1,024 is too low.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main()
