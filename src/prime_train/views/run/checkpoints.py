"""Shows which checkpoints of a run are complete and which one a resume uses. Reads the disk; never deletes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from prime_train.checkpoints.layout import MANIFEST, Checkpoint, inspect
from prime_train.checkpoints.packed import Entry
from prime_train.checkpoints.packing_plan import StoredSize, sum_sizes
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_bytes, format_seconds
from prime_train.programs import recorded


class CheckpointRow(NamedTuple):
    """One row of `ckpt list`. `age_s` counts from the manifest, or from the folder's last change if there is none."""

    step: int
    path: str
    size_bytes: int
    age_s: float
    problem: str  # "" = complete
    resume: bool  # a resume uses this checkpoint
    packing: Packing | None = None  # None = unchanged since it was saved, or incomplete


class Packing(NamedTuple):
    """How a complete checkpoint was packed after it was saved."""

    stored: StoredSize
    packed: bool
    lossy: bool  # optimizer moments were rounded to bf16


def saved(run_dir: RunDir) -> list[Checkpoint]:
    """Every checkpoint of a run, newest first, as its program lays them out."""
    program, run = recorded(run_dir)
    return program.checkpoints(run, run_dir)


def gather(run_dir: RunDir, unreadable: Collection[int], now_s: float) -> list[CheckpointRow]:
    """Every checkpoint of a run, newest first. `unreadable`: steps that a trainer could not load."""
    found = saved(run_dir)
    packings = {checkpoint.step: packing for checkpoint in found if (packing := _packing(checkpoint.entries))}
    return make_rows(((checkpoint, checkpoint.written_s) for checkpoint in found), unreadable, now_s, packings)


def make_rows(
    found: Iterable[tuple[Checkpoint, float]],
    unreadable: Collection[int],
    now_s: float,
    packings: Mapping[int, Packing] = MappingProxyType({}),
) -> list[CheckpointRow]:
    """The rows. `found`: each checkpoint and when it was written (seconds), newest first. `packings`: by step."""
    rows: list[CheckpointRow] = []
    has_resume = False
    for checkpoint, written_s in found:
        problem = checkpoint.problem
        if not problem and checkpoint.step in unreadable:
            problem = "the trainer could not load it"
        first = not problem and not has_resume
        has_resume = has_resume or first
        age_s = max(0.0, now_s - written_s)
        path, packing = str(checkpoint.path), packings.get(checkpoint.step)
        rows.append(CheckpointRow(checkpoint.step, path, checkpoint.size_bytes, age_s, problem, first, packing))
    return rows


def list_json(run: str, rows: Iterable[CheckpointRow]) -> dict[str, Any]:
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


def list_rows(rows: Iterable[CheckpointRow]) -> list[tuple[str, str, str, str]]:
    """step, size, age, remark: the columns of `ckpt list`."""
    return [
        (
            str(row.step),
            format_bytes(row.size_bytes),
            format_seconds(row.age_s),
            row.problem or "; ".join(("complete", *_packing_remark(row), *(["used by a resume"] * row.resume))),
        )
        for row in rows
    ]


def _packing_remark(row: CheckpointRow) -> Iterator[str]:
    packing = row.packing
    if packing is None:
        return
    if packing.packed:
        saved_bytes = format_bytes(packing.stored.saved_bytes)
        yield f"packed{', moments in bf16' * packing.lossy}, saves {saved_bytes} ({packing.stored.saved:.1%})"
    elif packing.lossy:
        yield "moments were rounded to bf16"


class VerifyResult(NamedTuple):
    """One checkpoint that was read. "unfinished": its save did not end; "whole": only the file lengths were checked."""

    step: int
    state: Literal["verified", "whole", "broken", "unfinished"]
    problem: str


def total_bytes(run_dir: RunDir, step: int | None = None) -> int:
    """The number of bytes that `verify` reads."""
    return sum(checkpoint.size_bytes for checkpoint in _choose(run_dir, step) if checkpoint.complete)


def verify(run_dir: RunDir, on_read: Callable[[int], None], step: int | None = None) -> Iterator[VerifyResult]:
    """Compares every byte of each checkpoint, or of that of `step`, with its SHA-256. Newest first.

    If the program writes no hashes, only the lengths of files are compared with torch's metadata.
    """
    program, _ = recorded(run_dir)
    lengths_only = f"all file lengths are correct; contents not checked, because {program.title} writes no hashes"
    for candidate in _choose(run_dir, step):
        if not program.keeps_hashes:
            state: Literal["whole", "unfinished"] = "whole" if candidate.complete else "unfinished"
            yield VerifyResult(candidate.step, state, candidate.problem or lengths_only)
            continue
        finished = (candidate.path / MANIFEST).exists()
        found = inspect(candidate.path, hashes=True, on_read=on_read)
        if not candidate.path.exists():  # retention deleted it during the read
            continue
        if found.complete:
            yield VerifyResult(found.step, "verified", "")
        else:
            yield VerifyResult(found.step, "broken" if finished else "unfinished", found.problem)


def _choose(run_dir: RunDir, step: int | None) -> list[Checkpoint]:
    return [found for found in saved(run_dir) if step is None or found.step == step]


def find_checkpoint(run_dir: RunDir, step: int) -> Checkpoint:
    """The checkpoint of `step`. Raises UserError if the run has none."""
    found = saved(run_dir)
    for checkpoint in found:
        if checkpoint.step == step:
            return checkpoint
    have = ", ".join(str(checkpoint.step) for checkpoint in reversed(found)) or "none"
    raise UserError(
        what=f"there is no checkpoint of step {step}",
        where=str(run_dir.checkpoints),
        why="--step must name an existing checkpoint",
        fix=f"use one of these steps: {have}" if found else "wait: the run has saved no checkpoint yet",
    )


def complete(run_dir: RunDir, step: int | None) -> list[Checkpoint]:
    """The complete checkpoints that can be packed, newest first, or only that of `step`.

    Raises UserError if that one is incomplete, or its program writes no hashes.
    """
    program, _ = recorded(run_dir)
    if not program.keeps_hashes:
        raise UserError(
            what=f"a checkpoint of {program.title} cannot be packed",
            where=str(run_dir.path),
            why="it has no manifest with the hash of every file, against which a packed file is checked",
            fix=f"prime-train ckpt prune {run_dir.path.name} deletes checkpoints that newer ones supersede",
        )
    if step is None:
        return [found for found in saved(run_dir) if found.complete]
    found = find_checkpoint(run_dir, step)
    if found.problem:
        raise UserError(
            what=f"the checkpoint of step {step} is not complete: {found.problem}",
            where=str(found.path),
            why="only complete checkpoints are packed or restored",
            fix=f"prime-train ckpt list {run_dir.path.name}",
        )
    return [found]


def verify_json(run: str, results: Iterable[VerifyResult]) -> dict[str, Any]:
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


def _packing(entries: Collection[Entry]) -> Packing | None:
    is_packed = any(entry.segments for entry in entries)
    is_lossy = any(entry.sha256_as_saved for entry in entries)
    return Packing(sum_sizes(entries), is_packed, is_lossy) if is_packed or is_lossy else None
