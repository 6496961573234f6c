"""The causes and errors that end a run when none of its processes is left to report one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.diagnose import Cause


def start_failure(error: OSError, launch: Path) -> Cause:
    what = f"it could not be started: {error.strerror}"
    return Cause("failed", "env", what, "the system refused to start a process", f"see {launch}", str(launch))


def no_loadable_checkpoint(rejected: Sequence[str], run_dir: RunDir) -> Cause:
    return Cause(
        "failed",
        "env",
        f"no checkpoint can be resumed from: {'; '.join(rejected)}",
        "a start from the beginning would lose more than one checkpoint interval, so a person must decide",
        "put an intact copy of one back, or start again under another name with --run-name",
        str(run_dir.checkpoints),
    )


def unkillable_processes(stuck: Sequence[psutil.Process], log: Path) -> Cause:
    return Cause(
        "failed",
        "env",
        f"its processes outlive SIGKILL: {', '.join(str(process.pid) for process in stuck)}",
        "they wait in the kernel, most often for a GPU driver or a network file system that does not answer",
        "reset the GPU or restart the machine, then give the same command again",
        str(log),
    )


def leftover_processes_error(stuck: Sequence[psutil.Process], run_dir: RunDir) -> UserError:
    cause = unkillable_processes(stuck, run_dir.path)
    return UserError(cause.what, cause.where, cause.why, cause.fix, ExitCode.OUT_OF_REACH)


def unwritable_run_error(error: OSError, run_dir: RunDir) -> UserError:
    return UserError(
        what=f"the run directory cannot be written: {error.strerror}",
        where=str(error.filename or run_dir.path),
        why="a run without its events cannot be resumed safely, so the trainer was ended",
        fix="free some space, then give the same command again: the run goes on from its newest checkpoint",
        exit_code=ExitCode.RUN_FAILED,
    )


def events_lost_error(run_dir: RunDir) -> UserError:
    return UserError(
        what="the events that were written cannot be read back",
        where=str(run_dir.events),
        why="the run directory was deleted or moved during the run, so the trainer was ended",
        fix="put the directory back and give the same command again, or start another run with --run-name",
        exit_code=ExitCode.RUN_FAILED,
    )
