"""Collects the evidence of an ended attempt, builds the event of its end, and has the causes that no log holds."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError, explain_disk_error
from prime_train.core.redaction import redact
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded
from prime_train.events.record import TRANSIENT
from prime_train.supervise.core.policy import Policy
from prime_train.supervise.core.state import Live, State
from prime_train.supervise.evidence.diagnose import EndCause, EndEvidence
from prime_train.supervise.evidence.gather import read_stuck_place
from prime_train.supervise.launch.run_directory import choose_checkpoint
from prime_train.supervise.processes.process import Exited
from prime_train.supervise.services.log_follower import LogReader
from prime_train.supervise.watches.host.host_program import count_oom_kills as count_by_group
from prime_train.supervise.watches.host.host_program import list_own_groups

_TAIL_BYTES = 256 * 1024
_DISK_LIMIT_S = 1.0
_NO_SPACE = os.strerror(errno.ENOSPC)
_ROOM_BYTES = 2**30  # for what else a run writes
_BYTES_PER_PARAMETER = 12  # of a checkpoint: weight and two moments in fp32
_LEAST_FREE_BYTES = 64 * 1024  # file systems reserve the last blocks, some for root


def read_tail(log: Path) -> str:
    """The end of a log; empty if the log does not exist or cannot be read."""
    try:
        with outside.open_regular(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def measure_free_bytes(folder: Path) -> int | None:
    """The room on the disk of `folder`; 0 where no further file can be created, None if it does not answer in time.

    A thread makes the call, because a dead disk may block its caller for ever.
    """
    free_bytes: list[int] = []

    def measure() -> None:
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            lacks_inodes = found.f_files > 0 and found.f_favail == 0  # some file systems count no inodes
            free_bytes.append(0 if lacks_inodes else found.f_bavail * found.f_frsize)

    thread = threading.Thread(target=measure, name="disk-room", daemon=True)
    thread.start()
    thread.join(_DISK_LIMIT_S)
    return free_bytes[0] if free_bytes else None


def reconsider_full_disk(cause: EndCause, state: State, policy: Policy) -> EndCause:
    """The cause, to be tried again where a disk was full and has room now. It costs an attempt, as any other failure.

    The room is that for two checkpoints: weights and moments in fp32, and as much again. A program that reports no
    sizes is not tried again: another save that is too large would cost an interval of training.
    """
    was_full = cause.cause_class == "disk" and _NO_SPACE in f"{cause.what} {cause.why}"
    folder = _find_written_folder(cause) if was_full and cause.retry != "yes" and policy.reports else None
    free_bytes = measure_free_bytes(folder) if folder is not None else None
    params = state.started.params if state.started else 0
    if free_bytes is None or free_bytes < _ROOM_BYTES + 2 * _BYTES_PER_PARAMETER * params:
        return cause
    return replace(cause, why=f"{cause.why}; there is room again now, so it is tried once more", retry="yes")


def _find_written_folder(cause: EndCause) -> Path | None:
    """The folder of the file that the cause names, or one around it; None where it names none of this machine."""
    named = re.search(r"'(/[^'\n]+)'", cause.what) or re.fullmatch(r"(/[^\n:]+)", cause.where)
    if named is None:  # a line of a source file, `/a/b.py:7`, is no place on the disk that was full
        return None
    path = Path(named[1])
    near = (path, *list(path.parents)[:2])
    return next((folder for folder in near if folder.is_dir() and folder.parent != folder), None)


def count_oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer ended in this control group; without one, on the machine.

    Kills elsewhere on the machine do not concern this run. A group of version 1 does not count the groups below it.
    """
    own = list_own_groups()[:1]
    below = [path.parent for group in own for path in group.glob("*/**/memory.oom_control")]
    counted = dict(count_by_group([*own, *below]))
    machine = counted.pop(Path("/proc/vmstat"), 0)
    return sum(counted.values()) if counted else machine


def collect_evidence(
    state: State, live: Live, policy: Policy, run_dir: RunDir, exited: Exited | None = None
) -> EndEvidence:
    """The evidence of an attempt whose processes have ended. `exited`: the exit that ended it; None if none came."""
    role = exited.role if exited is not None else _first_role(live)
    log = _log_of(live, run_dir, role)
    free_bytes = measure_free_bytes(run_dir.path)
    return EndEvidence(
        returncode=exited.returncode if exited is not None else None,
        log=log,
        log_tail=read_tail(log),
        oom_kills=0,
        role=role,
        stuck_place=read_stuck_place(run_dir.evidence(live.number)),
        disk_full=free_bytes is not None and free_bytes < _LEAST_FREE_BYTES,
        stopped_by_us=_was_stopped_by_us(state, live, policy),
    )


def _was_stopped_by_us(state: State, live: Live, policy: Policy) -> bool:
    """A stop was requested before anything failed, and nothing could be saved."""
    if state.stop_requested_s is None or live.pending_kill is not None:
        return False
    return not (policy.stops_by_file and state.stop_saves and live.all_started)


def collect_orphan_evidence(live: Live, run_dir: RunDir) -> EndEvidence:
    """The evidence of an attempt whose supervisor died. Its logs were not followed, so they are read now."""
    log = _log_of(live, run_dir, _first_role(live))
    return EndEvidence(None, log, read_tail(log), 0, LogReader([Path(child.log) for child in live.children]).cause())


def build_end_event(
    state: State,
    returncode: int | None,
    cause: EndCause,
    newest_first: Sequence[SavedCheckpoint],
    hidden: Sequence[str],
) -> AttemptEnded:
    newest, _ = choose_checkpoint(newest_first, state.unreadable)
    what, why, fix, where = (redact(text, hidden) for text in (cause.what, cause.why, cause.fix, cause.where))
    return AttemptEnded(
        *(state.attempt_number, returncode, cause.outcome, cause.cause_class, what, why, fix, where),
        newest_complete=newest,
        cause_id=cause.id,
        retry=cause.retry,
    )


def _first_role(live: Live) -> str:
    return live.children[0].role if live.children else "trainer"


def _log_of(live: Live, run_dir: RunDir, role: str) -> Path:
    named = next((Path(child.log) for child in live.children if child.role == role), None)
    return named if named is not None else run_dir.log(live.number, role)


def start_failure(error: OSError, launch: Path) -> EndCause:
    what = f"it could not be started: {error.strerror}"
    if error.errno in TRANSIENT:
        why = "the system has no room for another process, file or memory; that passes when other programs end"
        fix = f"see `ulimit -u`, `ulimit -n` and `free -h`; the launch is in {launch}"
        return EndCause("failed", "env", what, why, fix, str(launch), retry="yes")
    return EndCause("failed", "env", what, "the system refused to start a process", f"see {launch}", str(launch))


def no_loadable_checkpoint(rejected: Sequence[str], run_dir: RunDir) -> EndCause:
    what = f"no checkpoint can be resumed from: {'; '.join(rejected)}"
    why = "a start from the beginning would lose more than one checkpoint interval, so a person must decide"
    fix = "put an intact copy of one back, or start again under another name with --run-name"
    return EndCause("failed", "env", what, why, fix, str(run_dir.checkpoints))


def packed_checkpoint(packed: int, chosen: int, folder: Path, run_dir: RunDir) -> EndCause:
    what = f"the newest checkpoint that can be resumed from, of step {packed:,}, is packed"
    why = f"its trainer does not find it there, and would go on from step {chosen:,}"
    fix = f"prime-train ckpt restore {run_dir.path.name} --step {packed}; then give the same command again"
    return EndCause("failed", "env", what, why, fix, str(folder))


def immovable_checkpoint(error: OSError) -> EndCause:
    what = f"a broken checkpoint cannot be taken out of the way: {error.strerror or error}"
    why = "the trainer would load it and fail, again at each restart"
    fix = "rename it by hand, or correct the owner of its folder; then give the same command again"
    return EndCause("failed", "env", what, why, fix, str(error.filename or ""))


def background_processes(left: Sequence[psutil.Process], log: Path) -> EndCause:
    what = f"the command ended and left processes in the background: {', '.join(str(one.pid) for one in left[:8])}"
    why = "what is not a child of the command cannot be watched; they were ended"
    fix = "start the training in the foreground: without `&`, nohup, setsid, screen, or an option such as --daemon"
    return EndCause("failed", "config", what, why, fix, str(log))


def unkillable_processes(stuck: Sequence[psutil.Process], log: Path) -> EndCause:
    what = f"its processes outlive SIGKILL: {', '.join(str(process.pid) for process in stuck)}"
    why = "they wait in the kernel, most often for a GPU driver or a network file system that does not answer"
    fix = "reset the GPU or restart the machine, then give the same command again"
    return EndCause("failed", "env", what, why, fix, str(log))


def leftover_processes_error(stuck: Sequence[psutil.Process], run_dir: RunDir) -> UserError:
    cause = unkillable_processes(stuck, run_dir.path)
    return UserError(cause.what, cause.where, cause.why, cause.fix, ExitCode.OUT_OF_REACH)


def unwritable_run_error(error: OSError, run_dir: RunDir) -> UserError:
    found = explain_disk_error(error.errno or 0, run_dir.path)
    what = f"the run directory cannot be written: {error.strerror}: {found.what}"
    why = f"{found.why}; a run without its events cannot be resumed safely, so the trainer was ended"
    fix = f"{found.fix}; then give the same command again: the run goes on from its newest checkpoint"
    return UserError(what, str(error.filename or run_dir.path), why, fix, ExitCode.RUN_FAILED)


def endless_launches_error(launches: int, run_dir: RunDir) -> UserError:
    what = f"{launches} launches in a row led to no newer complete checkpoint, and the events do not show it"
    why = "the events are damaged or another program writes them, so the attempts cannot be judged by them"
    fix = f"look at them with `prime-train status {run_dir.path.name}`; or start another run with --run-name"
    return UserError(what, str(run_dir.events), why, fix, ExitCode.RETRIES_SPENT)
