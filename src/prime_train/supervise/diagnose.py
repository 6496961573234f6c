"""Says why an attempt ended, from what it said, how it exited, and the end of its log. Decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from prime_train.core.errors import ExitCode
from prime_train.diagnose import cause as root_cause
from prime_train.diagnose.log_scanner import scan
from prime_train.diagnose.signatures import catalogue
from prime_train.events import AlarmRaised, HangFound, TrainerFailed
from prime_train.supervise.exit_signals import (
    BY_ITSELF,
    OOM_KILLER,
    aborted_at,
    killed_rank,
    meaning,
    name_of,
    number_of,
)
from prime_train.supervise.state import Live, State
from prime_train.supervise.watches.hang.activity import STOPPED
from prime_train.supervise.watches.host.host_program import count_oom_kills as counters
from prime_train.supervise.watches.host.host_program import list_own_groups

_TAIL_BYTES = 256 * 1024
_DISK_ANSWERS_S = 1.0
_LEAST_FREE_BYTES = 64 * 1024  # file systems give the last blocks to nobody, or to root alone
_LONGEST_LINE = 300
_CLASSES = frozenset(
    {"config", "bug", "signal", "hang", "oom", "disk", "env", "unknown", "network", "hardware", "auth"}
)
_SAY_THE_SIGNAL = frozenset({"OS011", "OS012", "OS017", "TORCH002"})  # signatures that say no more than a signal does
_KEPT_CLASSES = frozenset({"config", "disk", "oom", "env"})  # what the trainer knows better than a line of a log does
_SEE_SILENCE = frozenset({"engine", "hang"})  # watches that see an effect
_SLOW_FIX = "if the phase is just slow, raise its limit in [prime_train.heartbeat]"
_STOPPED_FIX = "find who stops it: a debugger, Ctrl-Z, a scheduler that suspends jobs; `kill -CONT PID` lets it go on"
_OWN_LIMITS = frozenset({"oom", "hardware"})  # what has a process killed from outside, and is written down


@dataclass(frozen=True, slots=True)
class Cause:
    """How an attempt ended and why, in the four parts of a message."""

    outcome: str  # "finished" | "stopped" | "failed"
    cause_class: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""
    where: str = ""
    id: str = ""  # the signature or the alarm that it was told by
    retry: str = ""  # what the signature says of another try: "no" | "after_fix" | "yes"; "" = by the class


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of an attempt whose processes are gone. `role`: of the process whose exit ended it.

    `heard`: the root cause in all its logs, read while they grew; where nobody listened, or heard nothing, the end of
    the one log is read for it.
    """

    returncode: int | None
    log: Path
    log_tail: str
    oom_kills: int  # of the kernel's out-of-memory killer, on this machine or in this container, in its lifetime
    heard: root_cause.Cause | None = None
    role: str = "trainer"
    stood: str = ""  # where the rank that stands apart was seen before it was ended
    disk_full: bool = False  # the run's own: what it had to say found no room
    told_to_end: bool = False  # by its supervisor, and with nothing to save first

    @property
    def found(self) -> root_cause.Cause | None:
        """The root cause that the logs tell, known or not."""
        return self.heard or _from_log(self.log_tail, str(self.log))

    @property
    def who(self) -> str:
        """ "inference "; empty for the trainer, of which everything is said that names nobody."""
        return "" if self.role == "trainer" else f"{self.role} "


def tail(log: Path) -> str:
    """The end of a log; empty where there is none, and where it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:  # it is gone, or cannot be read
        return ""


def disk_full(folder: Path) -> bool:
    """Whether a file of any size would find no room there. False where that cannot be told, or not within a second.

    Asked in a thread: a disk that does not answer may hold who asks it for ever.
    """
    free_bytes: list[int] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            free_bytes.append(found.f_bavail * found.f_frsize)

    asking = threading.Thread(target=ask, name="disk-full", daemon=True)
    asking.start()
    asking.join(_DISK_ANSWERS_S)
    return bool(free_bytes) and free_bytes[0] < _LEAST_FREE_BYTES


def oom_kills() -> int:
    """Processes of this control group that the out-of-memory killer has ended; the whole machine's where there is none.

    A kill elsewhere on the machine says nothing of this run. A group of version 1 does not count those below it.
    """
    own = list_own_groups()[:1]
    below = [path.parent for group in own for path in group.glob("*/**/memory.oom_control")]
    counted = dict(counters([*own, *below]))
    machine = counted.pop(Path("/proc/vmstat"), 0)
    return sum(counted.values()) if counted else machine


def judge(state: State, live: Live, evidence: Evidence) -> Cause:
    """The trainer's own account comes first, then what the supervisor did to it, then the exit and the logs."""
    match live.word.said if live.word else "":
        case "finished" if live.word and live.word.step >= state.max_steps:
            return Cause("finished")
        case "stopped":
            return Cause("stopped")
    if evidence.told_to_end:
        return Cause("stopped")
    match live.doom.found if live.doom else None:
        case HangFound() as hang:
            return _hang(hang, evidence)
        case AlarmRaised() as alarm:
            return _alarm(alarm, evidence)
    killed = killed_rank(evidence.log_tail)
    if killed is not None:
        rank, number = killed
        return _signal(number, f"rank {rank} was ", evidence)
    if live.failure is not None:
        return _own_account(live.failure, evidence)
    if any(sent.signal in ("SIGTERM", "SIGKILL") for sent in live.sent):
        what = "it had to be ended before its checkpoint was complete"
        return Cause("stopped", "signal", what, "it did not stop in the time it had", "raise prime_train.stop_grace_s")
    return _exit(state, evidence)


def _own_account(failure: TrainerFailed, evidence: Evidence) -> Cause:
    """As the trainer tells it. What it does not know itself, a signature may: in any log, else in its own words."""
    cause_class = failure.cause_class if failure.cause_class in _CLASSES else "unknown"
    own = Cause("failed", cause_class, failure.what, failure.why, failure.fix, failure.where)
    said = _by_its_words(failure.what)
    if cause_class in _KEPT_CLASSES:
        return replace(own, id=said.id) if said is not None and said.cause_class == cause_class else own
    heard = evidence.heard
    if heard is not None and _explains(heard):
        return replace(_of_log(heard), where=own.where if heard.file == str(evidence.log) else _place(heard))
    if said is not None:
        return replace(own, cause_class=said.cause_class, why=said.why, fix=said.fix, id=said.id, retry=said.retry)
    return own


def _alarm(alarm: AlarmRaised, evidence: Evidence) -> Cause:
    """What a watch ended it for. Where a process only fell silent, a log may tell why."""
    where = alarm.where or alarm.subject
    heard = evidence.heard
    if alarm.watch in _SEE_SILENCE and heard is not None and _explains(heard):
        cause = _of_log(heard)
        return replace(cause, what=f"{cause.what}; then {alarm.what}")
    return Cause("failed", alarm.cause_class, alarm.what, alarm.why, alarm.fix, where, alarm.name)


def _hang(hang: HangFound, evidence: Evidence) -> Cause:
    """Where another log tells why it waits, that is the cause; the silence is only how it was found."""
    silent = f"no sign of life for {hang.silent_s:.0f} s in phase {hang.phase}"
    heard = evidence.heard
    if heard is not None and _explains(heard):
        cause = _of_log(heard)
        return replace(cause, what=f"{cause.what}; then {silent}")
    where = evidence.stood or aborted_at(evidence.log_tail)
    return Cause(
        "failed",
        "hang",
        f"{silent}; the limit is {hang.limit_s:g} s",
        hang.activity or ("its stack is in the log" if where else "it left no stack"),
        _STOPPED_FIX if hang.activity.startswith(STOPPED) else _SLOW_FIX,
        where or str(evidence.log),
    )


def _exit(state: State, evidence: Evidence) -> Cause:
    """The cause where the trainer itself left no account."""
    code = evidence.returncode
    log = str(evidence.log)
    reached = f"at {state.stands_at}"
    if code is None:
        what = f"{evidence.who}ended together with its supervisor {reached}".removeprefix(" ")
        return Cause("failed", "signal", what if evidence.who else f"it {what}", "the supervisor was killed", "", log)
    number = number_of(code)
    if number:
        return _signal(number, evidence.who, evidence)
    found = evidence.found
    if found is not None and (code != 0 or evidence.who or _explains(found)):  # a server whose engine died ends with 0
        return _of_log(found)
    if code == 0:
        why = "it did not say that it had finished" if not evidence.who else "it is to serve until the run is over"
        return Cause("failed", "unknown", f"{evidence.who}exited with 0 {reached}", why, f"read {log}", log)
    if evidence.disk_full:
        what = f"{evidence.who}exited with {code} {reached}, and the run's own disk is full"
        return Cause("failed", "disk", what, "its log found no room either", "free some space, then start again", log)
    cause_class, why = _EXIT_CODES.get(code, ("unknown", "it left no account of why"))
    return Cause("failed", cause_class, f"{evidence.who}exited with {code} {reached}", why, f"read {log}", log)


_EXIT_CODES = {
    int(ExitCode.RUN_FAILED): ("config", "it judged that another try would fail the same way"),
    int(ExitCode.USAGE): ("config", "it did not accept its arguments or its config"),
    126: ("env", "its program may not be executed"),
    127: ("env", "its program does not exist"),
}


# --- signals and logs --------------------------------------------------------------------------------


def _signal(number: int, who: str, evidence: Evidence) -> Cause:
    what, log = f"{who}killed by signal {name_of(number)}", str(evidence.log)
    found = evidence.found
    if found is not None and _explains(found) and (number in BY_ITSELF or found.cause_class in _OWN_LIMITS):
        return _of_log(found)
    if number == signal.SIGKILL and evidence.oom_kills > 0:
        why = "the kernel's out-of-memory killer was at work while it ran"
        fix = "lower batch.micro_batch or data.loader_workers, or add memory"
        return Cause("failed", "oom", what, why, fix, log, OOM_KILLER)
    why, fix = meaning(number)
    return Cause("failed", "signal", what, why, fix, aborted_at(evidence.log_tail) or log)


def _from_log(log_tail: str, log: str) -> root_cause.Cause | None:
    """The root cause as `prime-train diagnose` finds it in the end of one log; its line is not known."""
    found = root_cause.judge([scan([log_tail.encode("utf-8", "replace")], log)]).cause
    return None if found is None else found._replace(line=0)


def _explains(found: root_cause.Cause) -> bool:
    """Whether a signature knows it, and it is more than a warning or the echo of another failure or of a signal."""
    known = catalogue().by_id.get(found.id)
    return known is not None and not (known.cascade or known.weak) and found.id not in _SAY_THE_SIGNAL


def _by_its_words(said: str) -> root_cause.Cause | None:
    """What a signature makes of an exception's text alone."""
    found = root_cause.judge([scan([said.encode("utf-8", "replace")], "")]).cause
    return found if found is not None and _explains(found) else None


def _of_log(found: root_cause.Cause) -> Cause:
    retry = "" if found.id == root_cause.UNKNOWN else found.retry
    text = found.text[:_LONGEST_LINE]
    return Cause("failed", found.cause_class, text, found.why, found.fix, _place(found), found.id, retry)


def _place(found: root_cause.Cause) -> str:
    """The frame that raised it, else the log and the line."""
    if len(found.raised) > 1:
        return found.raised[1].partition(" in ")[0]
    return f"{found.file}:{found.line}" if found.line else found.file
