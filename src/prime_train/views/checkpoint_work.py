"""Tells what `ckpt prune`, `compress` and `restore` are to do and have done. Plans and words; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prime_train.checkpoints import packing_plan
from prime_train.checkpoints.layout import MANIFEST, Checkpoint, scan
from prime_train.checkpoints.packing_plan import Stored
from prime_train.checkpoints.retention import superseded
from prime_train.rundir import RunDir
from prime_train.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Going:
    """A checkpoint folder that may go, and why."""

    checkpoint: Checkpoint
    reason: str


def may_go(run_dir: RunDir, keep_last: int, keep_every_steps: int | None) -> list[Going]:
    """What may be deleted, oldest first: superseded checkpoints, and what a save that did not finish left.

    The caller holds the run's lock: without it, a folder without a manifest may be one that is being written.
    """
    found = scan(run_dir.checkpoints)
    reason = f"beyond keep_last = {keep_last}"
    gone = [Going(checkpoint, reason) for checkpoint in superseded(found, keep_last, keep_every_steps)]
    left = [Going(c, c.problem) for c in found if not (c.path / MANIFEST).exists() and not c.pinned]
    return sorted(gone + left, key=lambda going: going.checkpoint.step)


def kept_rows(run_dir: RunDir, going: Sequence[Going], keep_every_steps: int | None) -> list[tuple[str, str, str, str]]:
    """step, size, "keep" or "delete", why: every checkpoint of the run, newest first."""
    reasons = {one.checkpoint.step: one.reason for one in going}
    rows = []
    newest_seen = False
    for found in scan(run_dir.checkpoints):
        goes = found.step in reasons
        why = reasons.get(found.step) or _kept_why(found, newest_seen, keep_every_steps)
        newest_seen = newest_seen or found.complete
        rows.append((str(found.step), format_bytes(found.size_bytes), "delete" if goes else "keep", why))
    return rows


def _kept_why(found: Checkpoint, newest_seen: bool, keep_every_steps: int | None) -> str:
    if found.pinned:
        return "pinned"
    if not found.complete:
        return f"broken, left to look at: {found.problem}"
    if not newest_seen:
        return "the newest complete one"
    if keep_every_steps and found.step % keep_every_steps == 0:
        return f"a multiple of keep_every_steps = {keep_every_steps}"
    return "within keep_last"


def pruned_as_json(run: str, going: Iterable[Going], *, dry_run: bool) -> dict[str, Any]:
    """The document of `ckpt prune --json`."""
    rows = [
        {"step": one.checkpoint.step, "size_bytes": one.checkpoint.size_bytes, "reason": one.reason} for one in going
    ]
    return {"version": 1, "run": run, "dry_run": dry_run, "deleted": rows}


@dataclass(frozen=True, slots=True)
class Worked:
    """One checkpoint that was packed or restored, or that would be. `problem` is empty where that held."""

    step: int
    stored: Stored  # afterwards; of a plan, as expected
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
        return Worked(found.step, packing_plan.expected(found.path), lossy=packing_plan.is_lossy(found.path))
    if packing_plan.packed_without_loss(found.path):
        return Worked(found.step, packing_plan.stored(found.path), lossy=True, note="restored first, so not reckoned")
    return Worked(found.step, packing_plan.expected(found.path, edits=packing_plan.edits(found.path)), lossy=True)


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
