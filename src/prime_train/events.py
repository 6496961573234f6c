"""What happens in a run, as one line each in an append-only file per writer. Standard library only.

The supervisor and every trainer rank write their own file (network file systems promise nothing for
O_APPEND from several writers); readers merge them by time, writer and sequence number and leave a
torn last line alone until the rest of it arrives.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

VERSION = 1


# --- written by the supervisor -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A supervisor took the run's lock. A run has one of these per start of `prime-train run`."""

    kind: ClassVar[str] = "run_opened"
    run: str
    pid: int
    max_steps: int
    version: str


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """Written before the spawn: an attempt whose ChildStarted is missing may or may not have begun."""

    kind: ClassVar[str] = "launch_asked"
    attempt: int
    resume_step: int  # 0 = from the beginning
    rejected: tuple[str, ...] = ()  # newer checkpoints that were not taken: "step_40: model.distcp has 10 of 40 bytes"


@dataclass(frozen=True, slots=True)
class ChildStarted:
    kind: ClassVar[str] = "child_started"
    attempt: int
    role: str
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat: with the pid it names one process for ever
    log: str


@dataclass(frozen=True, slots=True)
class HangFound:
    """No progress for longer than the limit of the phase the trainer was in."""

    kind: ClassVar[str] = "hang_found"
    attempt: int
    silent_s: float
    limit_s: float
    phase: str


@dataclass(frozen=True, slots=True)
class SignalSent:
    kind: ClassVar[str] = "signal_sent"
    attempt: int
    signal: str  # "stop_requested" (the file), "SIGTERM", "SIGKILL"
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt's whole process tree is gone. `newest_complete` was read from the disk after its end."""

    kind: ClassVar[str] = "attempt_ended"
    attempt: int
    returncode: int | None  # as subprocess gives it: -9 = killed by signal 9; None = found dead by a later supervisor
    outcome: str  # "finished" | "stopped" | "failed"
    cause_class: str  # "" | "config" | "bug" | "signal" | "hang" | "oom" | "disk" | "env" | "unknown"
    what: str
    why: str
    fix: str
    where: str
    newest_complete: int  # 0 = none


@dataclass(frozen=True, slots=True)
class StopAsked:
    kind: ClassVar[str] = "stop_asked"
    by: str  # "SIGINT", "SIGTERM"


@dataclass(frozen=True, slots=True)
class ClockJumped:
    """The wall clock left the monotonic one: it was set, or the machine slept. Silences are counted without it."""

    kind: ClassVar[str] = "clock_jumped"
    jump_s: float


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The supervisor's last word. `state` is "finished", "stopped" or "failed"."""

    kind: ClassVar[str] = "run_closed"
    state: str
    exit_code: int
    reason: str


# --- written by the trainer ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainerStarted:
    kind: ClassVar[str] = "trainer_started"
    attempt: int
    pid: int
    rank: int
    world_size: int
    device: str
    precision: str
    params: int
    vocab_size: int
    resume_step: int


@dataclass(frozen=True, slots=True)
class Phase:
    """The trainer entered a phase: "setup", "tokenizer", "data", "train", "evaluate", "checkpoint", "export"."""

    kind: ClassVar[str] = "phase"
    attempt: int
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Optimizer steps were taken. Written at most a few times a second; metrics.jsonl has every step."""

    kind: ClassVar[str] = "progress"
    attempt: int
    step: int
    loss: float
    tokens_per_s: float
    tokens_seen: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    kind: ClassVar[str] = "evaluated"
    attempt: int
    step: int
    loss: float  # mean cross-entropy per held-out token, nats
    tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    kind: ClassVar[str] = "sampled"
    attempt: int
    step: int
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    kind: ClassVar[str] = "checkpoint_started"
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The marker of this checkpoint is on disk: it is complete."""

    kind: ClassVar[str] = "checkpoint_saved"
    attempt: int
    step: int
    size_bytes: int
    stall_s: float  # what the training loop waited for it, staging waits included
    write_s: float  # from start to marker


@dataclass(frozen=True, slots=True)
class CheckpointDeleted:
    kind: ClassVar[str] = "checkpoint_deleted"
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointUnreadable:
    """A checkpoint with a marker could not be loaded; the next attempt takes the one before."""

    kind: ClassVar[str] = "checkpoint_unreadable"
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrainerFailed:
    """The trainer's own account of its end. `cause_class` "config", "disk" and "env" are not retried."""

    kind: ClassVar[str] = "trainer_failed"
    attempt: int
    rank: int
    cause_class: str
    what: str
    why: str
    fix: str
    where: str


@dataclass(frozen=True, slots=True)
class TrainerStopped:
    """Ended on request after a complete checkpoint at `step`."""

    kind: ClassVar[str] = "trainer_stopped"
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class TrainerFinished:
    kind: ClassVar[str] = "trainer_finished"
    attempt: int
    step: int
    loss: float
    final: str  # path of the last checkpoint or the exported folder


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """A line of a later version: kept, shown by name, folded into nothing."""

    kind: ClassVar[str] = "unrecognised"
    name: str


Event = (
    RunOpened
    | LaunchAsked
    | ChildStarted
    | HangFound
    | SignalSent
    | AttemptEnded
    | StopAsked
    | ClockJumped
    | RunClosed
    | TrainerStarted
    | Phase
    | Progress
    | Evaluated
    | Sampled
    | CheckpointStarted
    | CheckpointSaved
    | CheckpointDeleted
    | CheckpointUnreadable
    | TrainerFailed
    | TrainerStopped
    | TrainerFinished
    | Unrecognised
)
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event) if cls is not Unrecognised}


@dataclass(frozen=True, slots=True)
class Record:
    """One event with its envelope. `time_s` is wall-clock seconds since the epoch, of the writer's machine."""

    time_s: float
    writer: str
    seq: int
    event: Event

    @property
    def order(self) -> tuple[float, str, int]:
        return (self.time_s, self.writer, self.seq)


def encode(record: Record) -> str:
    """One JSON line, without the newline."""
    envelope = {
        "v": VERSION,
        "t": round(record.time_s, 6),
        "w": record.writer,
        "n": record.seq,
        "kind": record.event.kind,
    }
    return json.dumps(envelope | asdict(record.event), ensure_ascii=False, allow_nan=True, separators=(",", ":"))


def decode(line: str) -> Record | None:
    """The record of one line; None for a line that is not one (torn by a crash, or foreign)."""
    try:
        raw = json.loads(line)
        cls = _KINDS.get(raw["kind"])
        if cls is None:
            event: Event = Unrecognised(name=str(raw["kind"]))
        else:
            known = {f.name for f in fields(cls)}
            event = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in known})
        return Record(float(raw["t"]), str(raw["w"]), int(raw["n"]), event)
    except (ValueError, KeyError, TypeError):
        return None


class EventLog:
    """Appends one writer's events. Safe from several threads; each line is one write(2) of its own."""

    def __init__(self, directory: Path, writer: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{writer}.jsonl"
        self._writer = writer
        self._lock = threading.Lock()
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        with open(self.path, "rb") as file:
            content = file.read()
        self._torn = bool(content) and not content.endswith(b"\n")  # a crash, or a full disk, cut the last line
        self._seq = content.count(b"\n") + self._torn  # a line that lacks only its newline has its number already

    def append(self, event: Event) -> Record:
        """Write one event. Raises OSError where the disk does not take the whole of it."""
        with self._lock:
            record = Record(time.time(), self._writer, self._seq, event)
            # A lone surrogate (a file name that is not UTF-8) becomes the JSON escape that means it.
            line = encode(record).encode(errors="backslashreplace") + b"\n"
            line = b"\n" + line if self._torn else line
            self._torn = os.write(self._fd, line) < len(line)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._seq += 1
        return record

    def close(self) -> None:
        os.close(self._fd)


class Follower:
    """Reads the events of a run directory as they are written: each call of `poll` returns what is new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[str, int] = {}

    def poll(self) -> list[Record]:
        """New records, merged by time; each writer's stay in its own order, were its clock set back meanwhile.

        Costs one stat per file when nothing is new.
        """
        by_writer: list[list[Record]] = []
        try:
            entries = [entry for entry in os.scandir(self._directory) if entry.name.endswith(".jsonl")]
        except FileNotFoundError:
            return []
        for entry in entries:
            offset = self._offsets.get(entry.name, 0)
            if entry.stat().st_size <= offset:
                continue
            with open(entry.path, "rb") as file:
                file.seek(offset)
                chunk = file.read()
            whole = chunk.rfind(b"\n") + 1
            self._offsets[entry.name] = offset + whole
            # Not str.splitlines: it also cuts at U+2028 and its like, which JSON strings may hold.
            decoded = (decode(line.decode("utf-8", "replace")) for line in chunk[:whole].split(b"\n"))
            by_writer.append([record for record in decoded if record is not None])
        return list(heapq.merge(*by_writer, key=lambda record: record.order))


def read(directory: Path) -> list[Record]:
    """Every event of a run, merged."""
    return Follower(directory).poll()
