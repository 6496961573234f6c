"""Finds the cause of an attempt's end in its events, its exit code and its logs. Pure: no I/O; decides nothing."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from prime_train.core.errors import ExitCode
from prime_train.diagnose import cause as root_cause
from prime_train.diagnose.log_scanner import scan
from prime_train.diagnose.signatures import catalogue
from prime_train.events import AlarmRaised, HangFound, TrainerFailed
from prime_train.supervise.core.state import Live, State
from prime_train.supervise.machines.protocol import MISSING
from prime_train.supervise.watches.hang.activity import STOPPED

_TORCHRUN_RANK = re.compile(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*-(\d+)\b")
# Signals that follow the end of another rank: torchrun sends SIGTERM to the other ranks, and a rank's watchdog
# aborts a collective that lost a peer.
_CONSEQUENCES = (int(signal.SIGTERM), int(signal.SIGABRT))
_ABORTED = re.compile(r'Current thread [^\n]*\(most recent call first\):\n\s+File "([^"]+)", line (\d+) in (\S+)')
SIGNALS: dict[int, tuple[str, str]] = {  # why a signal is sent, and what to do
    signal.SIGKILL: ("something outside this run sent it: a person, the job scheduler or a container limit", ""),
    signal.SIGTERM: ("something outside this run requested its end: a person or the job scheduler", ""),
    signal.SIGSEGV: ("native code accessed memory that is not its own", "read the stack at the end of the log"),
    signal.SIGBUS: ("memory-mapped storage is gone or full, often /dev/shm", "look at `df -h /dev/shm` and the disk"),
    signal.SIGABRT: ("native code aborted: a failed assertion or a collective that timed out", "read the log's end"),
}
_LONGEST_LINE = 300
_CLASSES = {"config", "bug", "signal", "hang", "oom", "disk", "env", "unknown", "network", "hardware", "auth", "data"}
_NAME_A_SIGNAL = frozenset({"OS011", "OS012", "OS017", "TORCH002"})  # signatures that add nothing to the signal's name
# The classes that the trainer, or the relay of other machines, knows better than its log.
_KEPT_CLASSES = frozenset({"config", "disk", "oom", "env", "signal", "hardware"})
_SILENCE_WATCHES = frozenset({"engine", "hang"})  # watches that see an effect and not its cause
_SLOW_FIX = "if the phase is only slow, raise its limit in [prime_train.heartbeat]"
_STOPPED_FIX = "find who stops it: a debugger, Ctrl-Z, a scheduler that suspends jobs; `kill -CONT PID` lets it go on"
_LOGGED_CAUSES = frozenset({"oom", "hardware"})  # a log may name them although another process sends the signal
OOM_KILLER = "kernel_oom_killer"  # the cause_id of an attempt that the kernel's out-of-memory killer ended
# Native code ends itself by these signals after a failure, most often with a message in the log.
_SELF_SENT = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})
_EXIT_CODES = {
    int(ExitCode.RUN_FAILED): ("config", "it judged that another try would fail the same way"),
    int(ExitCode.USAGE): ("config", "it did not accept its arguments or its config"),
    126: ("env", "its program may not be executed"),
    127: ("env", "its program does not exist"),
}


def find_killed_rank(log_tail: str) -> tuple[int, int] | None:
    """Rank and signal of the first killed rank in torchrun's summary; torchrun itself always exits with 1."""
    found = ((int(rank), int(number)) for rank, number in _TORCHRUN_RANK.findall(log_tail))
    return next(((rank, number) for rank, number in found if number not in _CONSEQUENCES), None)


def find_abort_place(log_tail: str) -> str:
    """The thread that got the fatal signal, by faulthandler: "file:line in function"; empty without such a line."""
    found = _ABORTED.findall(log_tail)
    return f"{found[-1][0]}:{found[-1][1]} in {found[-1][2]}" if found else ""


def find_signal_number(returncode: int) -> int:
    """The signal in an exit code, of the process itself (-9) or of a shell's child (137); 0 for none."""
    if returncode < 0:
        return -returncode
    return returncode - 128 if 128 < returncode <= 128 + 64 else 0


def name_signal(number: int) -> str:
    """ "9 (SIGKILL)"; only the number for a signal without a name."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


@dataclass(frozen=True, slots=True)
class EndCause:
    """How an attempt ended and why, in the four parts of a message."""

    outcome: str  # "finished" | "stopped" | "failed"
    cause_class: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""
    where: str = ""
    id: str = ""  # the signature or the alarm that names the cause
    retry: str = ""  # by the signature: "no" | "after_fix" | "yes"; "" = the cause class decides


@dataclass(frozen=True, slots=True)
class EndEvidence:
    """What is known of an attempt whose processes have ended. `role`: of the process whose exit ended it."""

    returncode: int | None
    log: Path
    log_tail: str
    oom_kills: int  # by the kernel in this container or on this machine, during the attempt
    log_cause: root_cause.Cause | None = None  # from all its logs, read while they grew
    role: str = "trainer"
    stuck_place: str = ""  # the source line of the rank that the others waited for
    disk_full: bool = False  # the disk of the run, so its last messages may be lost
    stopped_by_us: bool = False  # by a requested stop that saves nothing

    @property
    def found(self) -> root_cause.Cause | None:
        """The root cause in the logs, by a signature or not; without `log_cause`, from the end of the one log."""
        if self.log_cause is not None:
            return self.log_cause
        found = _scan_text(self.log_tail, str(self.log))
        return None if found is None else found._replace(line=0)  # which is not known

    @property
    def subject(self) -> str:
        """ "inference "; empty for the trainer, which is the default subject of a message."""
        return "" if self.role == "trainer" else f"{self.role} "


def judge(state: State, live: Live, evidence: EndEvidence) -> EndCause:
    """In this order: the end the trainer reported, what the supervisor did, the exit code and the logs.

    Where no stop was requested and a rank was killed, torchrun stopped the other ranks, which report a stop.
    """
    # torchrun always exits with 1, so only its summary shows that a signal ended a rank, and which.
    killed = find_killed_rank(evidence.log_tail)
    ended_by_us = any(sent.signal in ("SIGTERM", "SIGKILL") for sent in live.sent)
    match live.trainer_exit.outcome if live.trainer_exit else "":
        case "finished" if live.trainer_exit and (live.trainer_exit.step >= state.max_steps or state.is_endless):
            return EndCause("finished", what=live.trainer_exit.note)
        case "stopped" if killed is None or ended_by_us or state.stop_requested_s is not None:
            return EndCause("stopped")
    if evidence.stopped_by_us:
        return EndCause("stopped")
    match live.pending_kill.found if live.pending_kill else None:
        case HangFound() as hang:
            return _judge_hang(hang, evidence)
        case AlarmRaised() as alarm:
            return _judge_alarm(alarm, evidence)
    if killed is not None:
        rank, number = killed
        return _judge_signal(number, f"rank {rank} was ", evidence)
    if live.failure is not None and not _is_consequence(live.failure, evidence, ended_by_us=ended_by_us):
        return _judge_failure(live.failure, evidence)
    if ended_by_us:
        what, why = "it had to be ended before its checkpoint was complete", "it did not stop in its grace period"
        return EndCause("stopped", "signal", what, why, "raise prime_train.stop_grace_s")
    return _judge_exit(state, evidence)


def _is_consequence(failure: TrainerFailed, evidence: EndEvidence, *, ended_by_us: bool) -> bool:
    """The trainer lost its engine, because the engine's process had ended before it, or a rank lost another one.

    A trainer that reports a failure exits by itself. So a kill ended another process: torchrun, and with it the ranks.
    """
    if evidence.role != "trainer":
        return _is_engine_error(failure)
    return not ended_by_us and evidence.returncode == -signal.SIGKILL and failure.cause_class == "unknown"


def _is_engine_error(failure: TrainerFailed) -> bool:
    return failure.what.startswith("EngineError:")


def _judge_failure(failure: TrainerFailed, evidence: EndEvidence) -> EndCause:
    """As the trainer reports it; for a cause it does not know, the logs or its message may match a signature."""
    if failure.cause_class == MISSING:
        # Not retried here: this machine has waited for as long as it may. Other machines may all come.
        what, why, fix, where = failure.what, failure.why, failure.fix, failure.where
        return EndCause("failed", "hardware", what, why, fix, where, MISSING, retry="no")
    cause_class = failure.cause_class if failure.cause_class in _CLASSES else "unknown"
    own = EndCause("failed", cause_class, failure.what, failure.why, failure.fix, failure.where)
    # An engine that reports its own end is a consequence in its log, and the cause in the trainer's error.
    by_message = _match_message(failure.what, consequences=_is_engine_error(failure))
    if cause_class in _KEPT_CLASSES:
        return replace(own, id=by_message.id) if by_message and by_message.cause_class == cause_class else own
    found = evidence.log_cause
    if found is not None and _explains(found):
        return replace(_from_root_cause(found), where=own.where if found.file == str(evidence.log) else _place(found))
    if by_message is None:
        return own
    cause_class, why, fix = by_message.cause_class, by_message.why, by_message.fix
    return replace(own, cause_class=cause_class, why=why, fix=fix, id=by_message.id, retry=_retry_of(by_message))


def _judge_alarm(alarm: AlarmRaised, evidence: EndEvidence) -> EndCause:
    """The alarm; if it reports only silence, a log may name the cause of the silence."""
    if alarm.watch in _SILENCE_WATCHES and (cause := _explain_silence(evidence, alarm.what)):
        return cause
    where = alarm.where or alarm.subject
    return EndCause("failed", alarm.cause_class, alarm.what, alarm.why, alarm.fix, where, alarm.name)


def _explain_silence(evidence: EndEvidence, silence: str) -> EndCause | None:
    """The cause that a log has for it. A process whose end another one reports is what the silent one waits for."""
    found = evidence.log_cause
    if found is None or not (_explains(found) or _reports_end(found)):
        return None
    cause = _from_root_cause(found)
    return replace(cause, what=f"{cause.what.rstrip('.')}; then {silence}", retry="yes")  # it lived on after that line


def _judge_hang(hang: HangFound, evidence: EndEvidence) -> EndCause:
    silent = f"no sign of life for {hang.silent_s:.0f} s in phase {hang.phase}"
    if cause := _explain_silence(evidence, silent):
        return cause
    where = evidence.stuck_place or find_abort_place(evidence.log_tail)
    what = f"{silent}; the limit is {hang.limit_s:g} s"
    why = hang.activity or ("its stack is in the log" if where else "it left no stack")
    fix = _STOPPED_FIX if hang.activity.startswith(STOPPED) else _SLOW_FIX
    return EndCause("failed", "hang", what, why, fix, where or str(evidence.log))


def _judge_exit(state: State, evidence: EndEvidence) -> EndCause:
    """The cause by the exit code, if the trainer reported none."""
    code, subject, log = evidence.returncode, evidence.subject, str(evidence.log)
    reached = f"at {state.progress_text}"
    if code is None:
        what = f"{subject or 'it '}ended together with its supervisor {reached}"
        return EndCause("failed", "signal", what, "the supervisor was killed", "", log)
    if number := find_signal_number(code):
        return _judge_signal(number, subject, evidence)
    found = evidence.found
    # Any cause explains the exit of a service, which exits with 0 if its engine dies.
    if found is not None and (code != 0 or subject or _explains(found)):
        return _from_root_cause(found, confirmed=code in _EXIT_CODES)
    what, fix = f"{subject}exited with {code} {reached}", f"read {log}"
    if code == 0:
        why = "it must serve until the run is over" if subject else "it did not report that it had finished"
        return EndCause("failed", "unknown", what, why, fix, log)
    if evidence.disk_full:
        what, fix = f"{what}, and the run's own disk is full", "free some space, then start again"
        return EndCause("failed", "disk", what, "there was no space for its log either", fix, log)
    cause_class, why = _EXIT_CODES.get(code, ("unknown", "it reported no reason"))
    return EndCause("failed", cause_class, what, why, fix, log)


def _judge_signal(number: int, subject: str, evidence: EndEvidence) -> EndCause:
    what, log = f"{subject}killed by signal {name_signal(number)}", str(evidence.log)
    found = evidence.found
    if found is not None and _explains(found) and (number in _SELF_SENT or found.cause_class in _LOGGED_CAUSES):
        return replace(_from_root_cause(found), retry="yes")  # no traceback ended it, so its log decides nothing
    if number == signal.SIGKILL and evidence.oom_kills > 0:
        why = "the kernel's out-of-memory killer was active during the attempt"
        fix = "lower batch.micro_batch or data.loader_workers, or add memory"
        return EndCause("failed", "oom", what, why, fix, log, OOM_KILLER)
    why, fix = SIGNALS.get(number, ("", ""))
    return EndCause("failed", "signal", what, why, fix, find_abort_place(evidence.log_tail) or log)


def _scan_text(text: str, file: str) -> root_cause.Cause | None:
    """The root cause that `prime-train diagnose` finds in a text."""
    return root_cause.judge([scan([text.encode("utf-8", "replace")], file)]).cause


def _explains(found: root_cause.Cause, *, consequences: bool = False) -> bool:
    """Whether a signature matched that is more than a warning, a consequence of another failure or a signal's name."""
    known = catalogue().by_id.get(found.id)
    if known is None or known.weak or found.id in _NAME_A_SIGNAL:
        return False
    return consequences or not known.cascade


def _reports_end(found: root_cause.Cause) -> bool:
    known = catalogue().by_id.get(found.id)
    return known is not None and known.ends


def _match_message(message: str, *, consequences: bool = False) -> root_cause.Cause | None:
    """The signature that matches the text of an exception."""
    found = _scan_text(message, "")
    return found if found is not None and _explains(found, consequences=consequences) else None


def _from_root_cause(found: root_cause.Cause, *, confirmed: bool = False) -> EndCause:
    """The cause in a log. `confirmed`: evidence other than text confirms it, so its signature decides on a retry."""
    retry = _retry_of(found) if confirmed else found.retry
    cause_class = found.cause_class
    if found.id == root_cause.UNKNOWN:  # its class is a guess by its type, which decides nothing
        cause_class, retry = "unknown", ""
    text = found.text[:_LONGEST_LINE]
    return EndCause("failed", cause_class, text, found.why, found.fix, _place(found), found.id, retry)


def _retry_of(found: root_cause.Cause) -> str:
    """The retry of the signature that matched, wherever its line stands."""
    known = catalogue().by_id.get(found.id)
    return found.retry if known is None else known.retry


def _place(found: root_cause.Cause) -> str:
    """The frame that raised the error, else the log and the line."""
    if len(found.raised) > 1:
        return found.raised[1].partition(" in ")[0]
    return f"{found.file}:{found.line}" if found.line else found.file
