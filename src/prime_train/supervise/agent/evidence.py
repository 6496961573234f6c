"""Has what explains a failed attempt, for a controller: the last lines of each log, stacks. Bounded, secrets masked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core.outside import MARK_BYTES, read_json
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import AttemptEnded, Record
from prime_train.supervise.agent.log_tail import MOST_LINES, list_logs, read_end

_MOST_FILES = 32
_MOST_BYTES = 3 << 20  # as JSON: a message of the bus has at most 4 MiB
_ATTEMPTS_KEPT = 100
_FIRST = ("where", "stacks")  # a reader looks at these before the state of processes and GPUs


class EvidenceMessage(NamedTuple):
    attempt: int
    id: str
    body: dict[str, Any]


class EvidenceQueue:
    """The failed attempts whose evidence the bus has not stored yet. `place_file`: which ones it has."""

    def __init__(self, run_dir: RunDir, hidden: Sequence[str]) -> None:
        self._run_dir, self._hidden = run_dir, hidden
        self._place_file = run_dir.bus / "evidence.json"
        self._sent = _read_attempts(self._place_file, run_dir.path)
        self._waiting: dict[int, None] = {}  # an ordered set
        self._message: EvidenceMessage | None = None

    def add(self, record: Record) -> None:
        match record.event:
            case AttemptEnded(outcome="failed", attempt=attempt) if attempt not in self._sent:
                self._waiting[attempt] = None

    def next_message(self) -> EvidenceMessage | None:
        """The same one until it is acknowledged; None if there is none."""
        attempt = next(iter(self._waiting), None)
        if self._message is None and attempt is not None:
            body = {"attempt": attempt, "files": read_evidence(self._run_dir, attempt, self._hidden)}
            name = sha256(json.dumps(body).encode()).hexdigest()[:32]
            self._message = EvidenceMessage(attempt, f"evidence:{attempt}:{name}", body)
        return self._message

    def acknowledge(self, attempt: int) -> None:
        """The bus has stored the evidence of an attempt."""
        self._message = None
        self._waiting.pop(attempt, None)
        self._sent = [*self._sent, attempt][-_ATTEMPTS_KEPT:]
        # Without the file it is sent again after a restart, and replaces the same.
        with suppress(OSError):
            make_folder(self._place_file.parent)
            write_atomic(self._place_file, json.dumps(self._sent))


def read_evidence(run_dir: RunDir, attempt: int, hidden: Sequence[str]) -> list[dict[str, str]]:
    """Name and text of each file: first the logs, then what was gathered before the processes were ended."""
    found, size = [], 0
    for path in islice(_list_files(run_dir, attempt), _MOST_FILES):
        text = "\n".join(read_end(path, MOST_LINES, hidden))
        size += len(json.dumps(text, ensure_ascii=False).encode())
        if size > _MOST_BYTES:
            break
        # Half a surrogate pair, as Python reads a byte that is not UTF-8 in a name, cannot be sent.
        found.append({"name": path.name.encode(errors="replace").decode()[:100], "text": text})
    return found


def _list_files(run_dir: RunDir, attempt: int) -> Iterator[Path]:
    yield from list_logs(run_dir, attempt)
    with suppress(OSError):
        gathered = sorted(path for path in run_dir.evidence(attempt).iterdir() if not path.name.startswith("."))
        # The tails of the logs are there too.
        gathered = [path for path in gathered if not path.name.startswith("last-lines-")]
        yield from sorted(gathered, key=lambda path: not path.name.startswith(_FIRST))


def _read_attempts(path: Path, within: Path) -> list[int]:
    try:
        found = read_json(path, MARK_BYTES, within)
    except (OSError, ValueError):
        return []
    return [one for one in found if type(one) is int][-_ATTEMPTS_KEPT:] if isinstance(found, list) else []
