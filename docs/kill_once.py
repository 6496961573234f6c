"""Kills the trainer of a run once with SIGKILL, between two checkpoints, for `make demo KILL=1`.

It writes an event of the run before, so that the run shows it above its live screen: a line of another process would be
drawn over.
"""

import os
import signal
import sys
import time
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.events import ChildStarted, EventLog, Follower, LogNoticed, Progress, RunClosed, RunOpened


def main(name: str, wanted_step: int = 0) -> None:
    """Kill the trainer at `wanted_step`; 0 = after five eighths of the run."""
    run_dir = RunDir(Path("runs").resolve() / name)
    follower = Follower(run_dir.events)
    pid, attempt, kill_step = 0, 0, 0
    while True:
        for record in follower.poll():
            match record.event:
                case RunOpened(max_steps=max_steps):
                    kill_step = wanted_step or max_steps * 5 // 8
                case ChildStarted(role="trainer", pid=pid, attempt=attempt):
                    pass
                case Progress(step=step) if kill_step and step >= kill_step:
                    what = f"kill -9 {pid}, on purpose, at step {step}"
                    EventLog(run_dir.events, "kill_once").append(LogNoticed(attempt, "KILL", what, __file__, 0))
                    os.kill(pid, signal.SIGKILL)
                    return
                case RunClosed():
                    return
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
