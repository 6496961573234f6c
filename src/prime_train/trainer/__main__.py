"""The trainer's command line: `python -m prime_train.trainer RUN_DIR --attempt N --resume-step S`.

Started by the supervisor, or by a torchrun that the supervisor started. Exits with 0 after a finished or stopped
training, with 5 after a failure that would come again, and with 1 after any other failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog
from prime_train.spec import Parallel
from prime_train.trainer import failure
from prime_train.trainer.attempt import Attempt, StopFlag, read_ranks, read_replica, read_run, watch_supervisor
from prime_train.trainer.replicas.life_sign import folder_of, keep_failure


def main(arguments: list[str]) -> int:
    faulthandler.enable()
    # kill -USR1 PID prints the stacks of a silent trainer: that of the main thread at once, even from within C, and all
    # others when Python runs again. Python 3.11 crashes or hangs if a thread ends while C walks over all threads.
    signal.signal(signal.SIGUSR1, lambda *_: faulthandler.dump_traceback(all_threads=True))
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)
    parser = argparse.ArgumentParser(prog="python -m prime_train.trainer", description="Train a prepared run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    parser.add_argument("--resume-step", type=int, default=0, help="checkpoint to resume from; 0 = none")
    given = parser.parse_args(arguments)
    run_dir = RunDir(given.run_dir.resolve())
    if not run_dir.resolved.is_file():
        parser.error(f"{run_dir.resolved} is missing: prime-train run CONFIG writes it")

    watch_supervisor()
    stop = StopFlag(run_dir.stop_request(given.attempt))
    stop.listen()
    rank, replica = read_ranks(os.environ).rank, read_replica(os.environ)
    group = "" if replica is None else f"-replica{replica.number}"
    events = EventLog(run_dir.events, f"trainer-{given.attempt:03d}{group}-rank{rank}")
    try:
        run = read_run(run_dir)
        attempt = Attempt(run, run_dir, given.attempt, given.resume_step, events, rank, replica)
        layout = None if replica is None else run.parallel
        import_loop(run.run.kind, layout).main(attempt, stop)
    except Exception as error:
        failed, exit_code = failure.describe(error, given.attempt, rank)
        failure.show(error)
        with suppress(OSError):  # on a full disk only the log and the exit code remain
            if replica is None:
                events.append(failed)
            else:  # the others train on, so the launcher decides what it means for the run
                keep_failure(folder_of(run_dir, given.attempt), replica.number, failed)
        return exit_code
    return ExitCode.OK


def import_loop(kind: str, replicated: Parallel | None = None) -> ModuleType:
    """The training loop of a kind of run, and torch with it. Imported late, so that a missing torch becomes an event.

    `replicated`: the layout of a run with replicas.

    The garbage collector is off meanwhile: none of 400,000 objects is garbage, and looking takes a quarter of a start.
    """
    gc.disable()
    try:
        name = "grpo" if kind == "rl" else "pretrain"
        if replicated is not None:
            name = "local_steps" if replicated.sync_every else "replicated"
        loop = importlib.import_module(f"prime_train.trainer.loops.{name}")
    finally:
        gc.enable()
    gc.freeze()
    return loop


def _end(exit_code: int) -> None:
    """Exit the process. After a failure of one of several ranks, do not wait for a save: it would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    # A replica has waited for its saves, and a thread of torchft may wait for a lighthouse that is gone.
    if (exit_code and read_ranks(os.environ).size > 1) or read_replica(os.environ) is not None:
        os._exit(exit_code)
    sys.exit(exit_code)  # waits for a running save, which may be the newest checkpoint


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
