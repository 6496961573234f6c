"""Keeps in the run directory what was sent of a run to Weights & Biases, and its id there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from secrets import token_hex

from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES, OutsideError
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import Record

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


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


def choose_run_id(environment: Mapping[str, str], run_name: str) -> str:
    """The id of a run at W&B that was not mirrored from this directory yet.

    A recovered job of a cloud has an empty directory on another machine, and must continue the same run there. So the
    id is WANDB_RUN_ID if it is set, else it comes from the id that SkyPilot keeps over all recoveries of a job.
    """
    given = environment.get("WANDB_RUN_ID", "")
    if _RUN_ID.fullmatch(given):
        return given
    task = environment.get("SKYPILOT_TASK_ID")
    return sha256(f"{task}\n{run_name}".encode()).hexdigest()[:12] if task else token_hex(6)


def load_position(run_dir: RunDir, environment: Mapping[str, str]) -> Mirrored:
    """The stored state; the state of a run without any if there is none or it cannot be read."""
    try:
        raw = outside.read_json(run_dir.wandb / "mirror.json", RECORD_BYTES, within=run_dir.path)
        return Mirrored(str(raw["run_id"]), int(raw["last_step"]), {str(k): int(v) for k, v in raw["read"].items()})
    except (FileNotFoundError, OutsideError, ValueError, KeyError, TypeError, AttributeError):
        return Mirrored(choose_run_id(environment, run_dir.path.name))


def save_position(run_dir: RunDir, mirrored: Mirrored) -> None:
    make_folder(run_dir.wandb)
    write_atomic(run_dir.wandb / "mirror.json", json.dumps(asdict(mirrored)))
