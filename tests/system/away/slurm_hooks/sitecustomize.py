"""Python imports this at the start of each process whose PYTHONPATH has this folder: holds a trainer in its job.

A trainer takes PRIME_TRAIN_TEST_STEPS steps and then waits for the request to stop, which the time limit of its job
causes; with 0 it waits before its first step. The folder PRIME_TRAIN_TEST_WAITS has one file for each wait; with three
of them no trainer waits any more.
"""

import os
import sys
import time
from pathlib import Path

WAITS = 3

if os.environ.get("PRIME_TRAIN_TEST_WAITS") and sys.orig_argv[1:3] == ["-m", "prime_train.trainer"]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    waits, left = Path(os.environ["PRIME_TRAIN_TEST_WAITS"]), int(os.environ["PRIME_TRAIN_TEST_STEPS"])
    attempt = int(sys.orig_argv[sys.orig_argv.index("--attempt") + 1])
    requested = Path(sys.orig_argv[3]) / "attempts" / f"{attempt:03d}" / "stop_requested"

    def wait() -> None:
        if len(list(waits.iterdir())) < WAITS:
            (waits / str(attempt)).touch()
            while not requested.exists():
                time.sleep(0.05)

    def count(*_: object) -> None:
        global left
        left -= 1
        if left == 0:
            wait()

    if left == 0:
        wait()
    register_optimizer_step_post_hook(count)
