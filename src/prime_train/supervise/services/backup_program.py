"""Backs up the checkpoints of a live run in one round, and prints a JSON line for each result.

backup_program.py ORDER_AS_JSON

It has the lowest priority for cores and disk. It may be killed at any moment: see backups/sync.py. Credentials are in
its environment, never in its arguments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from prime_train.backups.push import prepare
from prime_train.backups.source import Hashes
from prime_train.backups.store import open_store
from prime_train.backups.sync import hold, run_round
from prime_train.checkpoints.step_folders import places_from
from prime_train.core.errors import UserError
from prime_train.spec.supervision import Backup
from prime_train.supervise.watches.sample_lines import write

_PROGRESS_S = 5.0  # between two lines during a long upload, so that a hang can be noticed


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    os.nice(19)
    psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    folder = Path(order["folder"])
    try:
        store, places = open_store(Backup(**order["backup"])), places_from(order["places"])
        upload = prepare(store, order["run"], places, Hashes(folder / "hashes.json"))
        with hold(folder):
            results = run_round(upload, order["keep_every_steps"], is_final=order["final"], on_sent=_ByteProgress())
            for result in results:
                write(result)
    except UserError as error:
        write({"did": "failed", "step": 0, "problem": f"{error.what}: {error.why}"})
    except OSError as error:
        write({"did": "failed", "step": 0, "problem": f"{error.strerror or error}: {error.filename or folder}"})
    else:
        write({"did": "done"})
        return
    write({"did": "ended"})


class _ByteProgress:
    """Writes the bytes in the bucket now and then; the supervisor only notices that the child is alive."""

    def __init__(self) -> None:
        self._sent_bytes = 0
        self._written_s = time.monotonic()

    def __call__(self, sent_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        if time.monotonic() - self._written_s >= _PROGRESS_S:
            self._written_s = time.monotonic()
            write({"did": "sending", "sent_bytes": self._sent_bytes})


if __name__ == "__main__":
    main()
