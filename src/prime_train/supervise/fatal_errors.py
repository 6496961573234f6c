"""Says what keeps a run from going on where no process of it is left to ask: causes and errors, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.diagnose import Cause


def not_started(error: OSError, launch: Path) -> Cause:
    what = f"it could not be started: {error.strerror}"
    return Cause("failed", "env", what, "the system refused to start a process", f"see {launch}", str(launch))


def nothing_loads(rejected: Sequence[str], run_dir: RunDir) -> Cause:
    return Cause(
        "failed",
        "env",
        f"no checkpoint can be resumed from: {'; '.join(rejected)}",
        "a start from the beginning would cost more than one checkpoint interval: that is for a person to choose",
        "put a sound copy of one back; or start again under another name with --run-name",
        str(run_dir.checkpoints),
    )


def unkillable(pids: Sequence[str], log: Path) -> Cause:
    return Cause(
        "failed",
        "env",
        f"processes of it outlive SIGKILL: {', '.join(pids)}",
        "they wait in the kernel, most often for a GPU driver or a network file system that does not answer",
        "reset the GPU or restart the machine, then give the same command again",
        str(log),
    )


def still_there(pids: Sequence[str], run_dir: RunDir) -> UserError:
    cause = unkillable(pids, run_dir.path)
    return UserError(cause.what, cause.where, cause.why, cause.fix, ExitCode.OUT_OF_REACH)


def unwritable(error: OSError, run_dir: RunDir) -> UserError:
    return UserError(
        what=f"the run directory cannot be written: {error.strerror}",
        where=str(error.filename or run_dir.path),
        why="a run whose events are lost cannot be resumed with care, so the trainer was ended",
        fix="free some space, then give the same command again: the run goes on from its newest checkpoint",
        exit_code=ExitCode.RUN_FAILED,
    )


def lost(run_dir: RunDir) -> UserError:
    return UserError(
        what="what was written to it cannot be read back",
        where=str(run_dir.events),
        why="the run directory was deleted or moved while the run was on, so the trainer was ended",
        fix="put the directory back and give the same command again, or start another run with --run-name",
        exit_code=ExitCode.RUN_FAILED,
    )
