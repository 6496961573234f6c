"""Kills the trainer of a run once with SIGKILL, between two checkpoints, for `make demo KILL=1`."""

import os
import signal
import sys
import time
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.events import ChildStarted, Follower, Progress, RunClosed, RunOpened


def main(name: str) -> None:
    follower = Follower(RunDir(Path("runs").resolve() / name).events)
    pid, kill_step = 0, 0
    while True:
        for record in follower.poll():
            match record.event:
                case RunOpened(max_steps=max_steps):
                    kill_step = max_steps * 5 // 8
                case ChildStarted(role="trainer", pid=started):
                    pid = started
                case Progress(step=step) if kill_step and step >= kill_step:
                    print(f"\n==> kill -9 {pid}, on purpose, at step {step}\n", file=sys.stderr)
                    os.kill(pid, signal.SIGKILL)
                    return
                case RunClosed():
                    return
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
