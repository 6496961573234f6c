"""Tells what `ckpt compress` and `restore` are to do and have done. Words; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prime_train.checkpoints import packing_plan
from prime_train.checkpoints.layout import Checkpoint
from prime_train.checkpoints.packing_plan import StoredSize
from prime_train.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Worked:
    """One checkpoint that was packed or restored, or that would be. `problem` is empty where that held."""

    step: int
    stored: StoredSize  # afterwards; of a plan, as expected
    seconds: float | None = None  # None = a plan
    problem: str = ""
    lossy: bool = False  # its moments were, or would be, rounded to bf16
    note: str = ""

    @property
    def mb_per_s(self) -> float | None:
        return self.stored.size_bytes / 1e6 / self.seconds if self.seconds else None


def planned(found: Checkpoint, *, lossy: bool) -> Worked:
    """What packing a checkpoint will come to; a packed one is not judged where it is to be restored first."""
    if not lossy:
        return Worked(found.step, packing_plan.estimate(found.path), lossy=packing_plan.is_lossy(found.path))
    if packing_plan.list_to_restore(found.path):
        return Worked(found.step, packing_plan.measure(found.path), lossy=True, note="restored first, so not reckoned")
    return Worked(found.step, packing_plan.estimate(found.path, edits=packing_plan.find_edits(found.path)), lossy=True)


def worked_rows(results: Iterable[Worked]) -> list[tuple[str, str, str, str, str]]:
    """step, size as saved, size on the disk, part saved, remark."""
    rows = []
    for one in results:
        took = f"{format_seconds(one.seconds)}, {one.mb_per_s:.0f} MB/s" if one.seconds and one.mb_per_s else ""
        stored, whole = one.stored.stored_bytes, one.stored.size_bytes
        saved = f"{one.stored.saved:.1%}"
        remark = ", ".join(filter(None, (one.note, "moments in bf16" if one.lossy else "", took)))
        rows.append((str(one.step), format_bytes(whole), format_bytes(stored), saved, one.problem or remark))
    return rows


def worked_as_json(run: str, results: Iterable[Worked], *, dry_run: bool) -> dict[str, Any]:
    """The document of `ckpt compress --json` and `ckpt restore --json`."""
    return {
        "version": 1,
        "run": run,
        "dry_run": dry_run,
        "checkpoints": [
            {
                "step": one.step,
                "size_bytes": one.stored.size_bytes,
                "stored_bytes": one.stored.stored_bytes,
                "saved": round(one.stored.saved, 4),
                "lossy": "moments bf16" if one.lossy else None,
                "seconds": None if one.seconds is None else round(one.seconds, 3),
                "mb_per_s": None if one.mb_per_s is None else round(one.mb_per_s, 1),
                "problem": one.problem or None,
            }
            for one in results
        ],
    }
