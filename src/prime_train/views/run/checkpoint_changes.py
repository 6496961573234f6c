"""Shows what `ckpt compress`, `restore` and `prune` did, or would do. Packs or restores one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.checkpoints.cleanup import Deletion, Keep, StoredItem, list_deletable, newest_usable
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.checkpoints.packing.packing_plan import StoredSize
from prime_train.core.units import format_bytes, format_seconds
from prime_train.views.text import pick, rounded


def plan_packing(found: SavedCheckpoint, *, lossy: bool) -> dict[str, Any]:
    """The expected sizes. There is no estimate for a packed checkpoint that must be restored before it is rounded."""
    path = found.path
    if not lossy:
        return describe_packing(found, packing_plan.estimate(path), lossy=packing_plan.is_lossy(path))
    if packing_plan.list_to_restore(path):
        return describe_packing(found, packing_plan.measure(path), lossy=True, note="no estimate: it is restored first")
    return describe_packing(found, packing_plan.estimate(path, edits=packing_plan.find_edits(path)), lossy=True)


def work_on(found: SavedCheckpoint, work: Callable[[Path], None]) -> dict[str, Any]:
    """Pack or restore one checkpoint. Damage is a result, so that the other checkpoints are still processed."""
    began = time.perf_counter()
    try:
        work(found.path)
    except archive.DamagedError as error:
        return describe_packing(found, packing_plan.measure(found.path), problem=f"broken: {error}")
    seconds = time.perf_counter() - began
    lossy = packing_plan.is_lossy(found.path)
    return describe_packing(found, packing_plan.measure(found.path), lossy=lossy, seconds=seconds)


def describe_packing(
    found: SavedCheckpoint,
    stored: StoredSize,
    *,
    lossy: bool = False,
    seconds: float | None = None,
    problem: str = "",
    note: str = "",
) -> dict[str, Any]:
    """One checkpoint of the document. `stored`: the sizes afterwards; in a plan, the expected sizes."""
    return {
        "step": found.step,
        "size_bytes": stored.size_bytes,
        "stored_bytes": stored.stored_bytes,
        "saved": round(stored.saved, 4),
        "lossy": "moments bf16" if lossy else None,
        "seconds": rounded(seconds, 3),
        "mb_per_s": rounded(stored.size_bytes / 1e6 / seconds, 1) if seconds else None,
        "problem": problem or None,
        "note": note or None,
    }


def packing_json(run: str, checkpoints: Sequence[dict[str, Any]], *, dry_run: bool) -> dict[str, Any]:
    """The document of `ckpt compress --json` and `ckpt restore --json`."""
    return {"version": 1, "run": run, "dry_run": dry_run, "checkpoints": list(checkpoints)}


def packing_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """step, size as saved, size on the disk, part saved, remark."""
    rows = []
    for one in document["checkpoints"]:
        took = f"{format_seconds(one['seconds'])}, {one['mb_per_s']:.0f} MB/s" if one["mb_per_s"] else ""
        remark = ", ".join(filter(None, (one["note"], "moments in bf16" if one["lossy"] else "", took)))
        sizes = (format_bytes(one["size_bytes"]), format_bytes(one["stored_bytes"]), f"{one['saved']:.1%}")
        rows.append((str(one["step"]), *sizes, one["problem"] or remark))
    return rows


Failed = Mapping[tuple[Path, ...], str]  # the paths of a deletion that failed -> why


class Pruning(NamedTuple):
    """The items of a run, the retention rules and the planned deletions."""

    items: tuple[StoredItem, ...]
    keep: Keep
    deletions: tuple[Deletion, ...]


def plan_pruning(items: Sequence[StoredItem], keep: Keep, now_s: float) -> Pruning:
    """The deletions, oldest first. The caller holds the run's lock."""
    going = (one for one in list_deletable(items, keep, now_s) if not one.last_resort)
    return Pruning(tuple(items), keep, tuple(sorted(going, key=lambda one: one.item.step)))


def prune_rows(plan: Pruning, failed: Failed) -> list[tuple[str, str, str, str, str]]:
    """kind, step, size, "keep" or "delete", why; the newest step first."""
    reasons, newest = {one.item.paths: one.reason for one in plan.deletions}, newest_usable(plan.items, plan.keep)
    found: list[tuple[str, str, str, str, str]] = []
    for item in sorted(plan.items, key=lambda item: -item.step):
        goes = item.paths in reasons and item.paths not in failed
        why = failed.get(item.paths) or reasons.get(item.paths) or _why_kept(item, plan.keep, newest)
        step = str(item.step) if item.step >= 0 else ""
        found.append((item.kind, step, format_bytes(item.size_bytes), "delete" if goes else "keep", why))
    return found


def _why_kept(item: StoredItem, keep: Keep, newest: StoredItem | None) -> str:
    every = keep.keep_every_steps
    if item.pinned:
        return "pinned"
    if item.in_use:
        return f"in use by {item.in_use}"
    if item.needed:
        return item.needed
    if item.kind == "broadcast":
        return "an engine or a resume may still read it"
    if item.kind == "rollouts":
        if newest is None:
            return "no checkpoint is complete"
        later = item.step >= newest.step
        return "later than the newest complete checkpoint" if later else "written to in the last minutes"
    if item.wholeness == "broken":
        return f"broken, kept for inspection: {item.problem}"
    if not item.complete:
        return f"a process may be writing it: {item.problem}"
    if newest is not None and item.step == newest.step:
        return f"{'' if item.kind == 'checkpoint' else 'belongs to '}the newest complete checkpoint"
    if every and item.step % every == 0:
        return f"a multiple of keep_every_steps = {every}"
    if keep.keep_last is not None and keep.keep_last < keep.least_whole:
        return f"the newest {keep.least_whole} complete ones stay"
    return "within keep_last" if keep.keep_last is not None else "keep_last is not set: add --keep-last N"


def prune_json(run: str, plan: Pruning, failed: Failed, *, dry_run: bool) -> dict[str, Any]:
    """The document of `ckpt prune --json`."""
    deleted = [
        pick(one.item, "kind", "step", "size_bytes") | {"reason": one.reason, "path": str(one.item.paths[0])}
        for one in plan.deletions
        if one.item.paths not in failed
    ]
    problems = [{"path": str(paths[0]), "problem": problem} for paths, problem in failed.items()]
    return {"version": 1, "run": run, "dry_run": dry_run, "deleted": deleted, "failed": problems}
