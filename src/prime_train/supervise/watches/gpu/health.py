"""Keeps the latest sample of the GPU watch in a file of the run, for the control page. Judges nothing.

The child of the watch writes it, so a disk that is full or slow never stops the supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_train.core.outside import MARK_BYTES, read_json
from prime_train.core.rundir import RunDir

STALE_S = 60.0  # an older sample is of a watch that no longer answers
_VERSION = 1
_FILE = "gpus.json"
_LIMIT_BYTES = 16 * MARK_BYTES  # 64 GPUs with 100 processes each
_MOST_GPUS = 64  # of a machine
_NUMBERS = ("used_bytes", "total_bytes", "utilisation_percent", "temperature_c", "uncorrected_errors")
_FLAGS = ("remap_pending", "remap_failed")


def write_gpu_health(run: Path, sample: Mapping[str, Any]) -> None:
    """Replace the file of the run with this sample. An error of the disk leaves the sample before."""
    path = run / "watches" / _FILE
    document = {"version": _VERSION, "host": socket.gethostname(), "taken_s": time.time(), "gpus": sample["gpus"]}
    temporary = path.with_name(f".{_FILE}.{os.getpid()}.tmp")
    # Not synced: the next sample follows in seconds, and after a crash none of them counts.
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        temporary.replace(path)


def read_gpu_health(run_dir: RunDir, now_s: float) -> dict[str, Any]:
    """The host and its GPUs as in the latest sample; empty without one that is younger than STALE_S.

    Only values of the right kind are kept: anyone who may write into the folder may change the file.
    """
    try:
        found = read_json(run_dir.watches / _FILE, _LIMIT_BYTES, run_dir.path)
        taken_s, host, gpus = float(found["taken_s"]), str(found["host"])[:255], list(found["gpus"])
        if found["version"] != _VERSION or not 0.0 <= now_s - taken_s <= STALE_S:
            return {}
        return {"host": host, "gpus": [_read_gpu(gpu) for gpu in gpus[:_MOST_GPUS]]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read_gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: value if type(value := gpu.get(name)) is int else None for name in _NUMBERS}
    flags = {name: value if type(value := gpu.get(name)) is bool else None for name in _FLAGS}
    uses = gpu.get("uses")
    pids = [use["pid"] for use in uses if type(use["pid"]) is int] if isinstance(uses, list) else None
    named = {"index": int(gpu["index"]), "uuid": str(gpu["uuid"])[:64], "fault": str(gpu.get("fault", ""))[:200]}
    return named | numbers | flags | {"pids": pids}
