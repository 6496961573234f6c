"""Two gloo ranks of which one never comes to a collective: it leaves it out, or is stopped by a signal before it.

python hung_ranks.py FOLDER leaves_out|stopped

Says "hangs PID0 PID1" once rank 0 waits in the collective.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOREVER_S = 3600.0
DEADLINE_S = 120.0


def rank(number: int, folder: Path, how: str) -> None:
    import faulthandler

    import torch
    import torch.distributed as dist

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=number, world_size=2)
    dist.all_reduce(torch.ones(4))
    (folder / f"rank{number}").write_text(str(os.getpid()))
    if number == 0:
        the_collective_that_hangs()
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(FOREVER_S)


def the_collective_that_hangs() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4))


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        rank(int(sys.argv[3]), folder, how)
        return
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), how, str(number)], env=environment | {"RANK": str(number)}
        )
        for number in range(2)
    ]
    deadline_s = time.monotonic() + DEADLINE_S
    while not all((folder / f"rank{number}").exists() for number in range(2)):
        if time.monotonic() > deadline_s or any(started.poll() is not None for started in ranks):
            sys.exit("the ranks did not meet")
        time.sleep(0.05)
    print("hangs", *(started.pid for started in ranks), flush=True)  # noqa: T201
    for started in ranks:
        started.wait()


if __name__ == "__main__":
    main()
