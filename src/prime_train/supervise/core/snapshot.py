"""Keeps the state of a run beside its events, with the places up to which it covers them, so that a long run is shown
as fast as a short one. Decides nothing: a supervisor reads the events themselves.

The snapshot is a cache. It is used where the events that it covers still end with the same bytes, it was written by
this version of the code, and its own checksum fits; otherwise the events are read from their start.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core.outside import open_regular, read_bytes
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import Follower
from prime_train.events.follower import ReadFile
from prime_train.events.record import Damage
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State

SAVED_BYTES = 1 << 20  # fewer new bytes are read in the time that a snapshot takes to write
_LIMIT_BYTES = 8 << 20
_EDGE_BYTES = 64 << 10  # compared at the start and at the end of what is covered


class KnownState(NamedTuple):
    """The state of a run from its events, and what of them is not used."""

    state: State
    damage: tuple[Damage, ...]


def read_state(run_dir: RunDir) -> KnownState:
    """The state from all events up to now. Writes a snapshot if many are new and the run belongs to this user.

    Raises UserError without permission to read.
    """
    state, follower = _load(run_dir)
    covered = follower.read_bytes
    state = reduce(fold, follower.stream(), state)
    if follower.read_bytes - covered >= SAVED_BYTES and _is_own(run_dir):
        with contextlib.suppress(OSError):
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
        return _read_state_json(raw["state"]), Follower(run_dir.events, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return State(), Follower(run_dir.events)


def _read_state_json(raw: dict[str, Any]) -> State:
    """Raises ValueError (pydantic's ValidationError is one)."""
    from pydantic import TypeAdapter  # lazy, because a short run needs none

    state: State = TypeAdapter(State).validate_python(raw)
    return state


def _edges(events: Path, name: str, file: ReadFile) -> int:
    """A checksum of the first and last bytes that were read of a file. Raises OSError; ValueError if it is shorter."""
    with open_regular(events / name, events) as opened:
        if os.fstat(opened.fileno()).st_size < file.offset:
            raise ValueError
        found = zlib.crc32(opened.read(min(_EDGE_BYTES, file.offset)))
        opened.seek(max(0, file.offset - _EDGE_BYTES))
        return zlib.crc32(opened.read(min(_EDGE_BYTES, file.offset)), found)


def _is_own(run_dir: RunDir) -> bool:
    """A file of another user would stand in the way of the run's owner."""
    try:
        return run_dir.path.stat().st_uid == os.geteuid()
    except OSError:
        return False


@cache
def _code() -> int:
    """A checksum of the code that a state depends on."""
    here = Path(__file__).parent
    package = here.parents[1]
    sources: Iterable[Path] = (
        *sorted((package / "events").glob("*.py")),
        *sorted(here.glob("fold*.py")),
        *(here / name for name in ("state.py", "event_text.py", "snapshot.py")),
        package / "supervise" / "watches" / "hang" / "silence_limits.py",
    )
    return reduce(lambda found, path: zlib.crc32(read_bytes(path, _LIMIT_BYTES), found), sources, 0)
