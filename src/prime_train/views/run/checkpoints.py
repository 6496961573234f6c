"""Shows which checkpoints of a run are complete and which one a resume uses. Never deletes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prime_train.checkpoints.aside import measure_aside
from prime_train.checkpoints.layout import MANIFEST, SavedCheckpoint, inspect
from prime_train.checkpoints.leftovers import find_leftovers
from prime_train.checkpoints.packing import foreign
from prime_train.checkpoints.packing.packing_plan import StoredSize, sum_sizes
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_bytes, format_seconds
from prime_train.programs import recorded


def saved(run_dir: RunDir) -> list[SavedCheckpoint]:
    """Every checkpoint of a run, newest first, as its program lays them out."""
    program, run = recorded(run_dir)
    return program.checkpoints(run, run_dir)


def packed(run_dir: RunDir) -> list[SavedCheckpoint]:
    """The checkpoints of another trainer that were moved to be packed, newest first."""
    program, run = recorded(run_dir)
    return foreign.list_packed(program.places(run, run_dir))


def list_json(run: str, found: Iterable[SavedCheckpoint], unreadable: Collection[int], now_s: float) -> dict[str, Any]:
    """The document of `ckpt list --json`. `found`: newest first. `unreadable`: steps that a trainer could not load."""
    listed = [_checkpoint_json(one, _problem(one, unreadable), now_s) for one in found]
    resume = next((one for one in listed if one["complete"] and not foreign.is_packed_away(Path(one["path"]))), None)
    if resume is not None:
        resume["resume"] = True
    step = None if resume is None else resume["step"]
    return {"version": 1, "run": run, "resume_step": step, "checkpoints": listed}


def _problem(found: SavedCheckpoint, unreadable: Collection[int]) -> str:
    return found.problem or ("the trainer could not load it" if found.step in unreadable else "")


def _checkpoint_json(found: SavedCheckpoint, problem: str, now_s: float) -> dict[str, Any]:
    stored = _stored(found)
    return {
        "step": found.step,
        "complete": not problem,
        "resume": False,
        "size_bytes": found.size_bytes,
        "packed": stored is not None,
        "lossy": "moments bf16" if _is_rounded(found) else None,
        "saved_bytes": stored.saved_bytes if stored else 0,
        "age_s": _age_s(found, now_s),
        "problem": problem or None,
        "pinned": found.pinned,
        "path": found.folder,
        "saved": round(stored.saved, 4) if stored else 0.0,
    }


def _stored(found: SavedCheckpoint) -> StoredSize | None:
    """What packing saves; None of a checkpoint that is not packed."""
    for entry in found.entries:
        if entry.segments:
            return sum_sizes(found.entries)
    return None


def _is_rounded(found: SavedCheckpoint) -> bool:
    return any(entry.sha256_as_saved for entry in found.entries)


def _age_s(found: SavedCheckpoint, now_s: float) -> float:
    """Seconds since the manifest was written, or since the folder's last change if there is none."""
    return round(max(0.0, now_s - found.written_s), 1)


def list_rows(
    found: Iterable[SavedCheckpoint], unreadable: Collection[int], now_s: float
) -> list[tuple[str, str, str, str]]:
    """step, size, age, remark: the columns of `ckpt list`, from what `list_json` takes."""
    rows, is_resume_shown = [], False
    for one in found:
        problem = _problem(one, unreadable)
        remarks = [problem or "complete", *_describe_packing(one), *(["pinned"] if one.pinned else [])]
        if foreign.is_packed_away(one.path):
            remarks.append("its trainer finds it after `prime-train ckpt restore`")
        elif not problem and not is_resume_shown:
            remarks.append("used by a resume")
            is_resume_shown = True
        size, age = format_bytes(one.size_bytes), format_seconds(_age_s(one, now_s))
        rows.append((str(one.step), size, age, "; ".join(remarks)))
    return rows


def _describe_packing(found: SavedCheckpoint) -> Sequence[str]:
    if not found.entries:  # as most
        return ()
    stored, is_rounded = _stored(found), _is_rounded(found)
    if stored is not None:
        rounded = ", moments in bf16" if is_rounded else ""
        return (f"packed{rounded}, saves {format_bytes(stored.saved_bytes)} ({round(stored.saved, 4):.1%})",)
    return ("moments were rounded to bf16",) if is_rounded else ()


def list_beside(places: StepPlaces) -> dict[str, Any]:
    """What another trainer's kills left beside its checkpoints, for the document of `ckpt list --json`.

    Empty for a program whose saves leave nothing there.
    """
    if not places.layout.proofs:
        return {}
    aside = measure_aside(places)
    left = [one for folder in places.temporary for one in find_leftovers(folder, places.layout.temporary)]
    return {
        "set_aside": [{"path": str(path), "size_bytes": size_bytes} for path, size_bytes in aside.items()],
        "temporary": [{"path": str(one.path), "size_bytes": one.size_bytes} for one in left],
    }


_BESIDE = {  # what it is, and what may be done with it
    "set_aside": "broken, set aside before a restart; delete it when you do not want to look at it",
    "temporary": "a temporary file of a save; left by a kill if no trainer is saving, and then of no use",
}


def beside_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """path, size, remark."""
    found = [(one, remark) for name, remark in _BESIDE.items() for one in document.get(name, ())]
    return [(one["path"], format_bytes(one["size_bytes"]), remark) for one, remark in found]


class VerifyResult(NamedTuple):
    """One checkpoint that was read. "unfinished": its save did not end; "whole": only the file lengths were checked."""

    step: int
    state: Literal["verified", "whole", "broken", "unfinished"]
    problem: str


def total_bytes(run_dir: RunDir, step: int | None = None) -> int:
    """The number of bytes that `verify` reads."""
    chosen = _choose(run_dir, step) + [one for one in packed(run_dir) if step in (None, one.step)]
    return sum(checkpoint.size_bytes for checkpoint in chosen if checkpoint.complete)


def verify(run_dir: RunDir, on_read: Callable[[int], None], step: int | None = None) -> Iterator[VerifyResult]:
    """Compares every byte of each checkpoint, or of that of `step`, with its SHA-256. Newest first.

    If the program writes no hashes, only the lengths of files are compared with torch's metadata.
    """
    program, run = recorded(run_dir)
    lengths_only = f"all file lengths are correct; contents not checked, because {program.title} writes no hashes"
    if program.places(run, run_dir).layout.proofs:
        lengths_only = "no file is missing or cut; other damage does not show, because the trainer writes no hashes"
    for found in foreign.list_packed(program.places(run, run_dir), step, hashes=True, on_read=on_read):
        is_broken = bool(found.problem) and (found.path / MANIFEST).exists()
        yield VerifyResult(
            found.step, "broken" if is_broken else "unfinished" if found.problem else "verified", found.problem
        )
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


def _choose(run_dir: RunDir, step: int | None) -> list[SavedCheckpoint]:
    return [found for found in saved(run_dir) if step is None or found.step == step]


def find_checkpoint(run_dir: RunDir, step: int) -> SavedCheckpoint:
    """The checkpoint of `step`. Raises UserError if the run has none."""
    program, run = recorded(run_dir)
    found = [*program.checkpoints(run, run_dir), *packed(run_dir)]
    for checkpoint in found:
        if checkpoint.step == step:
            return checkpoint
    have = ", ".join(str(checkpoint.step) for checkpoint in reversed(found)) or "none"
    raise UserError(
        what=f"there is no checkpoint of step {step}",
        where=str(run_dir.path),
        why="only the step of an existing checkpoint can be taken" if found else program.describe_search(run, run_dir),
        fix=f"use one of these steps: {have}" if found else "wait: the run has saved no checkpoint yet",
    )


def complete(run_dir: RunDir, step: int | None) -> list[SavedCheckpoint]:
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
        "checkpoints": [found._asdict() | {"problem": found.problem or None} for found in results],
    }
