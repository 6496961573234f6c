"""Stores in the run directory the W&B id of a run and how much of the run was sent. Sends nothing."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import Record

_FOLDER = "wandb"  # W&B writes its own files there as well
_ID_BYTES = 6


def folder(run_dir: RunDir) -> Path:
    return run_dir.path / _FOLDER


def log(run_dir: RunDir) -> Path:
    """The output of the mirror and of W&B."""
    return folder(run_dir) / "mirror.log"


def lock(run_dir: RunDir) -> Path:
    """The lock file, so that a run has one mirror at a time."""
    return folder(run_dir) / "mirror.lock"


def _path(run_dir: RunDir) -> Path:
    return folder(run_dir) / "mirror.json"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What was sent of a run. `read`: writer -> number of its last event that was sent."""

    run_id: str
    last_step: int = 0
    read: dict[str, int] = field(default_factory=dict)

    def has(self, record: Record) -> bool:
        return record.seq <= self.read.get(record.writer, -1)

    def with_records(self, records: list[Record], last_step: int) -> Mirrored:
        return Mirrored(self.run_id, last_step, self.read | {record.writer: record.seq for record in records})


def load(run_dir: RunDir) -> Mirrored:
    """The stored state; a new id if there is none or it cannot be read."""
    try:
        raw = json.loads(_path(run_dir).read_text(encoding="utf-8"))
        return Mirrored(str(raw["run_id"]), int(raw["last_step"]), {str(k): int(v) for k, v in raw["read"].items()})
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return Mirrored(secrets.token_hex(_ID_BYTES))


def save(run_dir: RunDir, mirrored: Mirrored) -> None:
    folder(run_dir).mkdir(exist_ok=True)
    write_atomic(_path(run_dir), json.dumps(asdict(mirrored)))
