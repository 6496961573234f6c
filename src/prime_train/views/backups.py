"""Shows the copies of checkpoints in a bucket. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prime_train.backups import inventory
from prime_train.backups.inventory import StoredBackup
from prime_train.core.units import format_bytes, format_seconds
from prime_train.views.text import pick


def status_json(run: str, location: str, backups: Sequence[StoredBackup], here: set[int]) -> dict[str, Any]:
    """The document of `backup status --json`. Version 1. `here`: the steps on this disk."""
    newest = inventory.newest_complete(backups)
    return {
        "version": 1,
        "run": run,
        "location": location,
        "newest_complete_step": newest.step if newest is not None else None,
        "backups": [
            {
                **pick(one, "step", "id", "complete", "problem", "pinned"),
                "size_bytes": one.manifest.size_bytes if one.manifest is not None else None,
                "stored_bytes": one.stored_bytes,
                "saved_s": one.saved_s or None,
                "on_this_disk": one.step in here,
            }
            for one in backups
        ],
    }


def status_rows(document: Mapping[str, Any], now_s: float) -> list[tuple[str, ...]]:
    """Step, size, stored size, age, whether it is on this disk, and remarks of each backup in the document."""
    return [_status_row(one, now_s) for one in document["backups"]]


def _status_row(one: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    size = "?" if one["size_bytes"] is None else format_bytes(one["size_bytes"])
    age = "?" if one["saved_s"] is None else format_seconds(max(0.0, now_s - one["saved_s"]))
    notes = ", ".join(part for part in (one["problem"], "pinned" if one["pinned"] else "") if part)
    here = "yes" if one["on_this_disk"] else ""
    return (str(one["step"]), size, format_bytes(one["stored_bytes"]), age, here, notes)
