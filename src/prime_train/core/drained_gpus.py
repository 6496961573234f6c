"""The file by which a supervisor asks the launcher of replicas to go on without some GPUs. Standard library only.

A replica on such a GPU is ended while the others train on. It starts again when its GPU is no longer named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from prime_train.core.outside import MARK_BYTES, read_json
from prime_train.core.rundir import RunDir, write_atomic

_MOST_GPUS = 1024


def write_drained(run_dir: RunDir, attempt: int, gpus: Iterable[str]) -> None:
    """Name these GPUs, by UUID, and no others. Raises OSError."""
    write_atomic(run_dir.drained_gpus(attempt), json.dumps(sorted(gpus)))


def read_drained(run_dir: RunDir, attempt: int) -> frozenset[str]:
    """The UUIDs that are named; empty without such a file, and for one that cannot be read."""
    try:
        found = read_json(run_dir.drained_gpus(attempt), MARK_BYTES, within=run_dir.path)
    except (OSError, ValueError):
        return frozenset()
    names = found if isinstance(found, list) and len(found) <= _MOST_GPUS else []
    return frozenset(name for name in names if isinstance(name, str))
