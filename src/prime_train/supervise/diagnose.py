"""Says why an attempt ended, from what it said, how it exited, and the end of its log. Decides nothing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.diagnose import cause as root_cause
from prime_train.diagnose.match import scan
from prime_train.errors import ExitCode, UserError
from prime_train.events import AlarmRaised, HangFound, TrainerFailed
from prime_train.rundir import RunDir
from prime_train.supervise.state import Live, State

_TAIL_BYTES = 256 * 1024
_LONGEST_LINE = 300
_CLASSES = frozenset(
    {"config", "bug", "signal", "hang", "oom", "disk", "env", "unknown", "network", "hardware", "auth"}
)
_NATIVE_ABORT = "OS017"  # the signature that says no more than the signal does


@dataclass(frozen=True, slots=True)
class Cause:
    """How an attempt ended and why, in the four parts of a message."""

    outcome: str  # "finished" | "stopped" | "failed"
    cause_class: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of an attempt whose processes are gone."""

    returncode: int | None
    log: Path
    log_tail: str
    oom_kills: int  # of the kernel's out-of-memory killer, on this machine or in this container, in its lifetime


def tail(log: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def oom_kills() -> int:
    """Processes that the out-of-memory killer has ended since boot, as far as this process may know."""
    counters = (
        ("/proc/vmstat", "oom_kill"),
        ("/sys/fs/cgroup/memory.events", "oom_kill"),  # control groups, version 2
        ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),  # version 1
    )
    return sum(_counter(Path(path), name) for path, name in counters)


def _counter(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
    except (OSError, ValueError):
        return 0


def judge(state: State, live: Live, evidence: Evidence) -> Cause:
    """The trainer's own account comes first, then what the supervisor did to it, then the exit and the log."""
    match live.word.said if live.word else "":
        case "finished" if live.word and live.word.step >= state.max_steps:
            return Cause("finished")
        case "stopped":
            return Cause("stopped")
    match live.doom.found if live.doom else None:
        case HangFound() as hang:
            return _hang(hang, evidence)
        case AlarmRaised() as alarm:
            return Cause("failed", alarm.cause_class, alarm.what, alarm.why, alarm.fix, alarm.where or alarm.subject)
    killed = _killed_rank(evidence.log_tail)
    if killed is not None:
        rank, number = killed
        return _signal(number, f"rank {rank} was ", evidence)
    if live.failure is not None:
        return _own_account(live.failure)
    if any(sent.signal in ("SIGTERM", "SIGKILL") for sent in live.sent):
        what = "it had to be ended before its checkpoint was complete"
        return Cause("stopped", "signal", what, "it did not stop in the time it had", "raise prime_train.stop_grace_s")
    return _exit(state, evidence)


def _own_account(failure: TrainerFailed) -> Cause:
    cause_class = failure.cause_class if failure.cause_class in _CLASSES else "unknown"
    return Cause("failed", cause_class, failure.what, failure.why, failure.fix, failure.where)


def _hang(hang: HangFound, evidence: Evidence) -> Cause:
    where = _aborted_at(evidence.log_tail)
    return Cause(
        "failed",
        "hang",
        f"no sign of life for {hang.silent_s:.0f} s in phase {hang.phase}; the limit is {hang.limit_s:g} s",
        "its stack is in the log" if where else "it left no stack",
        "if the phase is just slow, raise its limit in [prime_train.heartbeat]",
        where or str(evidence.log),
    )


def _exit(state: State, evidence: Evidence) -> Cause:
    """The cause where the trainer itself left no account."""
    code = evidence.returncode
    log = str(evidence.log)
    reached = f"at step {state.step} of {state.max_steps}"
    if code is None:
        return Cause(
            "failed", "signal", f"it ended together with its supervisor {reached}", "the supervisor was killed", "", log
        )
    if code in (-signal.SIGABRT, 128 + signal.SIGABRT):
        found = _from_log(evidence.log_tail)
        if found is not None and found.id not in (root_cause.UNKNOWN, _NATIVE_ABORT):
            return _of_log(found, log)  # native code gave up because of it
    if code < 0 or 128 < code <= 128 + 64:
        return _signal(-code if code < 0 else code - 128, "", evidence)
    if code == 0:
        why = "it did not say that it had finished"
        return Cause("failed", "unknown", f"exited with 0 {reached}", why, f"read {log}", log)
    found = _from_log(evidence.log_tail)
    if found is not None:
        return _of_log(found, log)
    cause_class, why = _EXIT_CODES.get(code, ("unknown", "it left no account of why"))
    return Cause("failed", cause_class, f"exited with {code} {reached}", why, f"read {log}", log)


_EXIT_CODES = {
    int(ExitCode.RUN_FAILED): ("config", "it judged that another try would fail the same way"),
    int(ExitCode.USAGE): ("config", "it did not accept its arguments or its config"),
    126: ("env", "its program may not be executed"),
    127: ("env", "its program does not exist"),
}


# --- what happens to an attempt before and after its processes ---------------------------------------


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


# --- signals ---------------------------------------------------------------------------------------

_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "something outside this run sent it: a person, the job scheduler, or a limit of the container",
        "",
    ),
    signal.SIGTERM: ("something outside this run asked it to end: a person or the job scheduler", ""),
    signal.SIGSEGV: ("native code touched memory that is not its own", "read the stack at the end of the log"),
    signal.SIGBUS: ("memory-mapped storage is gone or full, often /dev/shm", "look at `df -h /dev/shm` and the disk"),
    signal.SIGABRT: ("native code gave up: a failed assertion or a collective that timed out", "read the log's end"),
}


def _signal(number: int, who: str, evidence: Evidence) -> Cause:
    try:
        name = f"{number} ({signal.Signals(number).name})"
    except ValueError:
        name = str(number)
    what, log = f"{who}killed by signal {name}", str(evidence.log)
    if number == signal.SIGKILL and evidence.oom_kills > 0:
        why = "the kernel's out-of-memory killer was at work while it ran"
        return Cause("failed", "oom", what, why, "lower batch.micro_batch or data.loader_workers, or add memory", log)
    why, fix = _SIGNALS.get(number, ("", ""))
    return Cause("failed", "signal", what, why, fix, _aborted_at(evidence.log_tail) or log)


_TORCHRUN_RANK = re.compile(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*-(\d+)\b")
# A process that was killed is never the echo of another one's end. SIGTERM is: torchrun sends it to
# the other ranks; and so is SIGABRT, by which a rank's watchdog ends a collective that lost a peer.
_ECHOES = (int(signal.SIGTERM), int(signal.SIGABRT))


def _killed_rank(log_tail: str) -> tuple[int, int] | None:
    """Rank and signal of the first killed rank in torchrun's summary, whose own exit code is always 1."""
    found = ((int(rank), int(number)) for rank, number in _TORCHRUN_RANK.findall(log_tail))
    return next(((rank, number) for rank, number in found if number not in _ECHOES), None)


# --- logs ------------------------------------------------------------------------------------------

_ABORTED = re.compile(r'Current thread [^\n]*\(most recent call first\):\n\s+File "([^"]+)", line (\d+) in (\S+)')


def _from_log(log_tail: str) -> root_cause.Cause | None:
    """The root cause as `prime-train diagnose` finds it."""
    return root_cause.judge([scan([log_tail.encode("utf-8", "replace")], "log")]).cause


def _of_log(found: root_cause.Cause, log: str) -> Cause:
    where = found.raised[1].partition(" in ")[0] if len(found.raised) > 1 else log
    return Cause("failed", found.cause_class, found.text[:_LONGEST_LINE], found.why, found.fix, where)


def _aborted_at(log_tail: str) -> str:
    """Where faulthandler found the thread that got the fatal signal: "file:line in function"."""
    found = _ABORTED.findall(log_tail)
    return f"{found[-1][0]}:{found[-1][1]} in {found[-1][2]}" if found else ""
