"""Tells which checkpoints of a run are complete and which one a resume takes. Reads the disk; never deletes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from prime_train.backends import saved
from prime_train.checkpoints import packing_plan
from prime_train.checkpoints.layout import MANIFEST, Checkpoint, inspect, scan
from prime_train.checkpoints.packing_plan import StoredSize
from prime_train.errors import UserError
from prime_train.rundir import RunDir
from prime_train.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint as it is shown. `age_s` counts from its manifest, without one from its folder's last change."""

    step: int
    path: str
    size_bytes: int
    age_s: float
    problem: str  # "" = complete
    resume: bool  # a resume takes this one
    packing: Packing | None = None  # None = as it was saved, or not complete


@dataclass(frozen=True, slots=True)
class Packing:
    """What became of a complete checkpoint after it was saved."""

    stored: StoredSize
    packed: bool
    lossy: bool  # its moments were rounded to bf16


def gather(run_dir: RunDir, unreadable: Collection[int], now_s: float) -> list[Listed]:
    """Every checkpoint of a run, newest first. `unreadable`: steps that a trainer could not load."""
    found = [(checkpoint, _written_s(checkpoint)) for checkpoint in saved.checkpoints(run_dir)]
    packings = {c.step: packing for c, _ in found if c.complete and (packing := _packing(c)) is not None}
    return listed(found, unreadable, now_s, packings)


def listed(
    found: Iterable[tuple[Checkpoint, float]],
    unreadable: Collection[int],
    now_s: float,
    packings: Mapping[int, Packing] = MappingProxyType({}),
) -> list[Listed]:
    """The same from what the disk said: each checkpoint and when it was written, newest first; packings by step."""
    rows: list[Listed] = []
    for checkpoint, written_s in found:
        problem = checkpoint.problem
        if not problem and checkpoint.step in unreadable:
            problem = "the trainer could not load it"
        first = not problem and not any(row.resume for row in rows)
        age_s = max(0.0, now_s - written_s)
        path, packing = str(checkpoint.path), packings.get(checkpoint.step)
        rows.append(Listed(checkpoint.step, path, checkpoint.size_bytes, age_s, problem, first, packing))
    return rows


def as_json(run: str, rows: Iterable[Listed]) -> dict[str, Any]:
    """The document of `ckpt list --json`."""
    rows = list(rows)
    return {
        "version": 1,
        "run": run,
        "resume_step": next((row.step for row in rows if row.resume), None),
        "checkpoints": [
            {
                "step": row.step,
                "complete": not row.problem,
                "resume": row.resume,
                "size_bytes": row.size_bytes,
                "packed": row.packing is not None and row.packing.packed,
                "lossy": "moments bf16" if row.packing is not None and row.packing.lossy else None,
                "saved_bytes": row.packing.stored.saved_bytes if row.packing is not None else 0,
                "age_s": round(row.age_s, 1),
                "problem": row.problem or None,
                "path": row.path,
            }
            for row in rows
        ],
    }


def as_rows(rows: Iterable[Listed]) -> list[tuple[str, str, str, str]]:
    """step, size, age, remark: the columns of `ckpt list`."""
    return [
        (
            str(row.step),
            format_bytes(row.size_bytes),
            format_seconds(row.age_s),
            row.problem or "; ".join(("complete", *_packed_how(row), *(["a resume takes this one"] * row.resume))),
        )
        for row in rows
    ]


def _packed_how(row: Listed) -> Iterator[str]:
    packing = row.packing
    if packing is None:
        return
    if packing.packed:
        saved_bytes = format_bytes(packing.stored.saved_bytes)
        yield f"packed{', moments in bf16' * packing.lossy}, saves {saved_bytes} ({packing.stored.saved:.1%})"
    elif packing.lossy:
        yield "moments were rounded to bf16"


@dataclass(frozen=True, slots=True)
class Verified:
    """One checkpoint after it was read. "unfinished": its save did not get to the end; "whole": by lengths alone."""

    step: int
    state: Literal["verified", "whole", "broken", "unfinished"]
    problem: str


def total_bytes(run_dir: RunDir, step: int | None = None) -> int:
    """What `verify` has to read."""
    return sum(checkpoint.size_bytes for checkpoint in _asked(run_dir, step) if checkpoint.complete)


def verify(run_dir: RunDir, on_read: Callable[[int], None], step: int | None = None) -> Iterator[Verified]:
    """Each checkpoint, or that of `step`, newest first, after every byte of it was compared with its SHA-256.

    prime-rl keeps no hashes: of its checkpoints the length of each file is compared with what torch noted.
    """
    if saved.is_prime_rls(run_dir):
        for found in saved.checkpoints(run_dir, shards=True):
            if step is None or found.step == step:
                yield Verified(found.step, "whole" if found.complete else "unfinished", found.problem or _LENGTHS_ALONE)
        return
    for candidate in _asked(run_dir, step):
        finished = (candidate.path / MANIFEST).exists()
        found = inspect(candidate.path, hashes=True, on_read=on_read)
        if not candidate.path.exists():  # retention took it away while it was read
            continue
        if found.complete:
            yield Verified(found.step, "verified", "")
        else:
            yield Verified(found.step, "broken" if finished else "unfinished", found.problem)


_LENGTHS_ALONE = "its files have their lengths; prime-rl keeps no hashes of what is in them"


def _asked(run_dir: RunDir, step: int | None) -> list[Checkpoint]:
    return [found for found in scan(run_dir.checkpoints) if step is None or found.step == step]


def only(run_dir: RunDir, step: int) -> Checkpoint:
    """The checkpoint of `step`. UserError where the run has none."""
    found = scan(run_dir.checkpoints)
    for checkpoint in found:
        if checkpoint.step == step:
            return checkpoint
    have = ", ".join(str(checkpoint.step) for checkpoint in reversed(found)) or "none"
    raise UserError(
        what=f"there is no checkpoint of step {step}",
        where=str(run_dir.checkpoints),
        why="--step names one that is there",
        fix=f"one of: {have}" if found else "the run has no checkpoint yet",
    )


def verified_as_json(run: str, results: Iterable[Verified]) -> dict[str, Any]:
    """The document of `ckpt verify --json`."""
    results = list(results)
    return {
        "version": 1,
        "run": run,
        "ok": not any(found.state == "broken" for found in results),
        "checkpoints": [
            {"step": found.step, "state": found.state, "problem": found.problem or None} for found in results
        ],
    }


def _packing(checkpoint: Checkpoint) -> Packing | None:
    folder = checkpoint.path
    try:
        packing = Packing(packing_plan.measure(folder), packing_plan.is_packed(folder), packing_plan.is_lossy(folder))
    except FileNotFoundError:  # retention took it away in the meantime
        return None
    return packing if packing.packed or packing.lossy else None


def _written_s(checkpoint: Checkpoint) -> float:
    manifest = checkpoint.path / MANIFEST
    try:
        return (manifest if manifest.exists() else checkpoint.path).stat().st_mtime
    except FileNotFoundError:  # retention took it away in the meantime
        return 0.0
