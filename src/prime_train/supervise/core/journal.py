"""Writes the supervisor's events, and folds the events of all writers into the state of the run. Decides nothing.

The state is kept beside the events, with the places up to which it covers them, so that a long run is shown as fast as
a short one. That snapshot is a cache: a supervisor reads the events themselves. It is used where the events that it
covers still end with the same bytes, it was written by this version of the code, and its own checksum fits.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import open_descriptor, read_bytes
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import Event, EventLog, Follower, Record
from prime_train.events.follower import ReadFile
from prime_train.events.record import Damage, describe
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SAVED_BYTES = 1 << 20  # fewer new bytes are read in the time that a snapshot takes to write
_LIMIT_BYTES = 8 << 20
_EDGE_BYTES = 64 << 10  # compared at the start and at the end of what is covered
WRITER = "supervisor"
Show = Callable[[State, Sequence[Record]], None]


class Journal:
    """The events of a run and its state, which comes only from reading them.

    `handle` is called for each new record with the state after it, and `show` after each reading with all of them.
    """

    def __init__(self, run_dir: RunDir, handle: Callable[[State, Record], None], show: Show) -> None:
        self.state = State()
        self._run_dir = run_dir
        self._handle = handle
        self._show = show
        self._log = EventLog(run_dir.events, WRITER)
        self._follower = Follower(run_dir.events)
        self._saved_bytes = 0

    def read(self) -> list[Record]:
        records = self._follower.poll()
        for record in records:
            self.state = fold(self.state, record)
            self._handle(self.state, record)
        if self._follower.read_bytes - self._saved_bytes >= SAVED_BYTES * 8:
            self._saved_bytes = self._follower.read_bytes
            with contextlib.suppress(OSError):
                save(self._run_dir, self.state, self._follower)
        self._show(self.state, records)
        return records

    def append(self, event: Event) -> None:
        """Write an event and read it back.

        Raises UserError if that fails, because the loop would repeat the action. The life and the position prove that
        the line is this one; the reader has compared its checksum.
        """
        written = self._log.append(event)
        if not any((read.life, read.seq) == (written.life, written.seq) for read in self.read()):
            raise events_lost_error(self._run_dir, self.describe_damage())

    def append_last(self, event: Event) -> None:
        """Write an event that no decision follows; it is not read back."""
        self._log.append(event)

    def check_exists(self) -> None:
        """Raises UserError if the file of the supervisor's events is gone."""
        if not self._log.path.exists():
            raise events_lost_error(self._run_dir)

    def describe_damage(self) -> str:
        """What of the events read so far is not used; empty if all of it is."""
        return describe(self._follower.damage)

    def close(self) -> None:
        """Keep the state of a run that is over beside its events: `status` shows thousands of such runs at once."""
        self._log.close()
        with contextlib.suppress(OSError, UserError):
            state = reduce(fold, self._follower.stream(), self.state)
            if state.closed:
                save(self._run_dir, state, self._follower)


def events_lost_error(run_dir: RunDir, damage: str = "") -> UserError:
    """`damage`: what of the events could not be used, if their file is still there."""
    what = "the events that were written cannot be read back"
    another_run = "or start another run with --run-name"
    if (run_dir.events / f"{WRITER}.jsonl").is_file():
        why = f"another program changes their file, or the disk loses what is written: {damage or 'a line is missing'}"
        fix = f"end what else writes there, and give the same command again, {another_run}"
    else:
        why = "the run directory was deleted or moved during the run, so the trainer was ended"
        fix = f"put the directory back and give the same command again, {another_run}"
    return UserError(what, str(run_dir.events), why, fix, ExitCode.RUN_FAILED)


class KnownState(NamedTuple):
    """The state of a run from its events, and what of them is not used."""

    state: State
    damage: tuple[Damage, ...]


def read_state(run_dir: RunDir) -> KnownState:
    """The state from all events up to now.

    Writes a snapshot if many are new and the run belongs to this user. Raises UserError without permission to read.
    """
    state, follower = _load(run_dir)
    covered = follower.read_bytes
    state = reduce(fold, follower.stream(), state)
    if follower.read_bytes - covered >= SAVED_BYTES:
        with contextlib.suppress(OSError):
            # A file of another user would stand in the way of the run's owner.
            if run_dir.path.stat().st_uid == os.geteuid():
                save(run_dir, state, follower)
    return KnownState(state, follower.damage)


def save(run_dir: RunDir, state: State, follower: Follower) -> None:
    """Write the snapshot of a state to which all records of the follower are folded. Raises OSError."""
    files = [asdict(file) | {"edges": _edges(run_dir.events, name, file)} for name, file in follower.files.items()]
    body = json.dumps({"code": _code(), "files": files, "state": asdict(state)}, separators=(",", ":"))
    write_atomic(run_dir.snapshot, f"{body}\n{zlib.crc32(body.encode(errors='backslashreplace')):08x}\n")


def _load(run_dir: RunDir) -> tuple[State, Follower]:
    """The state of the snapshot and a follower that goes on after it; without a usable one, those of no event."""
    try:
        body, _, check = read_bytes(run_dir.snapshot, _LIMIT_BYTES, run_dir.path).rpartition(b"\n")[0].rpartition(b"\n")
        if check != b"%08x" % zlib.crc32(body):
            raise ValueError
        raw = json.loads(body)
        if raw["code"] != _code():
            raise ValueError
        files = {}
        for entry in raw["files"]:
            edges = entry.pop("edges")
            file = ReadFile(**entry)
            if edges != _edges(run_dir.events, file.name, file):
                raise ValueError
            files[file.name] = file
        state: State = _adapter().validate_python(raw["state"])  # its ValidationError is a ValueError
        return state, Follower(run_dir.events, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return State(), Follower(run_dir.events)


def _edges(events: Path, name: str, file: ReadFile) -> int:
    """A checksum of the first and last bytes that were read of a file. Raises OSError; ValueError if it is shorter."""
    opened = open_descriptor(f"{events}/{name}", events)
    try:
        if os.fstat(opened).st_size < file.offset:
            raise ValueError
        edge_bytes = min(_EDGE_BYTES, file.offset)
        found = zlib.crc32(os.pread(opened, edge_bytes, 0))
        return zlib.crc32(os.pread(opened, edge_bytes, file.offset - edge_bytes), found)
    finally:
        os.close(opened)


@cache
def _adapter() -> TypeAdapter[State]:
    """Made once, because that takes as long as reading a hundred snapshots."""
    from pydantic import TypeAdapter  # lazy, because a short run needs none

    return TypeAdapter(State)


@cache
def _code() -> int:
    """A checksum of the code that a state depends on."""
    here = Path(__file__).parent
    package = here.parents[1]
    sources: Iterable[Path] = (
        *sorted((package / "events").glob("*.py")),
        *sorted(here.glob("fold*.py")),
        *(here / name for name in ("state.py", "event_text.py", "journal.py")),
        package / "supervise" / "watches" / "hang" / "silence_limits.py",
    )
    return reduce(lambda found, path: zlib.crc32(read_bytes(path, _LIMIT_BYTES), found), sources, 0)
