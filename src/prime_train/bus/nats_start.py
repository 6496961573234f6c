"""Makes the kernel end this process with its parent, then becomes the NATS server."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; exec keeps it


def main() -> None:
    parent, program, config = sys.argv[1:]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it ended before prctl
        sys.exit("the process that starts the server is gone")
    os.execv(program, [program, "--config", config])


if __name__ == "__main__":
    main()
