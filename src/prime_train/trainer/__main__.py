"""The trainer's command line: `python -m prime_train.trainer RUN_DIR --attempt N --resume-step S`.

Started by the supervisor, or by torchrun that it started. Ends with 0 after a finished or stopped
training, 5 after a failure that another try would meet again, 1 after any other.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from prime_train.errors import ExitCode, UserError
from prime_train.events import EventLog
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec, from_json
from prime_train.trainer import failure
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.stop import StopFlag, watch_supervisor


def main(arguments: list[str]) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # kill -USR1 PID shows where a silent trainer stands
    parser = argparse.ArgumentParser(prog="python -m prime_train.trainer", description="Train a prepared run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    parser.add_argument("--resume-step", type=int, default=0, help="checkpoint to go on from; 0 = none")
    given = parser.parse_args(arguments)
    run_dir = RunDir(given.run_dir.resolve())
    if not run_dir.resolved.is_file():
        parser.error(f"{run_dir.resolved} is missing: prime-train run CONFIG writes it")

    watch_supervisor()
    stop = StopFlag(run_dir.stop_request(given.attempt))
    stop.listen()
    rank = int(os.environ.get("RANK", "0"))
    events = EventLog(run_dir.events, f"trainer-{given.attempt:03d}-rank{rank}")
    try:
        run = _read(run_dir)
        from prime_train.trainer import pretrain  # torch from here on, so that its absence is a failure we can tell

        pretrain.main(Attempt(run, run_dir, given.attempt, given.resume_step, events, rank), stop)
    except Exception as error:
        failed, exit_code = failure.told(error, given.attempt, rank)
        failure.show(error)
        with suppress(OSError):  # where the disk is full, the log and the exit code must tell
            events.append(failed)
        return exit_code
    return ExitCode.OK


def _read(run_dir: RunDir) -> RunSpec:
    from pydantic import ValidationError

    try:
        return from_json(run_dir.resolved.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise UserError(
            what=f"it is not a run: {error.error_count()} faults, first {error.errors()[0]['msg']}",
            where=str(run_dir.resolved),
            why="it was edited, or written by another version",
            fix="give the command `prime-train run` again with the config",
            exit_code=ExitCode.RUN_FAILED,
        ) from error


def _end(exit_code: int) -> None:
    """Leave. After a failure without waiting for a save in flight that waits for other ranks in turn."""
    sys.stdout.flush()
    sys.stderr.flush()
    if exit_code and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(exit_code)
    sys.exit(exit_code)  # waits for a save in flight, which may be the newest


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
