"""Packs and unpacks the checkpoints of a trainer that prime-train did not write, and names those that must stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from prime_train.checkpoints import layout
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.packing import archive, foreign, foreign_archive, packing_plan
from prime_train.checkpoints.packing.foreign import FoundStep
from prime_train.checkpoints.packing.packed import ManifestEntry, Read
from prime_train.checkpoints.packing.packing_plan import StoredSize
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs import recorded
from prime_train.programs.command.folder_lock import hold_folder
from prime_train.views.run import checkpoint_changes as changes


class ForeignWork(NamedTuple):
    """What is left to pack: checkpoints of the trainer with their files, and those that an earlier call began."""

    places: StepPlaces
    found: tuple[tuple[FoundStep, tuple[ManifestEntry, ...]], ...]
    begun: tuple[SavedCheckpoint, ...]
    broken: tuple[tuple[int, archive.DamagedError | OSError], ...] = ()  # step, and why its move cannot be finished

    @property
    def total_bytes(self) -> int:
        left = sum(packing_plan.work_bytes(one.path) for one in self.begun)
        return left + sum(entry.kept_bytes for _, entries in self.found for entry in _choose(entries))


def _choose(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return packing_plan.choose_to_pack(entries)


def find_places(run_dir: RunDir) -> StepPlaces | None:
    """The places of a run whose trainer has a layout of its own; None for prime-train's own checkpoints."""
    program, spec = recorded(run_dir)
    return None if program.keeps_hashes else program.places(spec, run_dir)


def choose_work(run_dir: RunDir, places: StepPlaces, step: int | None, *, lossy: bool, dry_run: bool) -> ForeignWork:
    """What `ckpt compress` packs; moves that a kill cut are finished first. The caller holds the run.

    Raises UserError where the layout does not allow it, or the checkpoint of `step` must stay as it is.
    """
    _refuse_layout(run_dir, places, lossy=lossy)
    faults: dict[int, archive.DamagedError | OSError] = {}
    if not dry_run:
        _refuse_shared(places)
        faults = foreign_archive.finish_moves(places)
    broken = tuple((one, fault) for one, fault in faults.items() if step in (None, one))
    begun = [one for one in foreign.list_packed(places, step) if one.complete]
    every = foreign.find_steps(places)
    if step is not None and not begun and not broken:
        _refuse_step(run_dir, step, next((one for one in every if one.step == step), None))
    wanted = [one for one in every if not one.obstacle and step in (None, one.step)]
    listed = [(one, tuple(foreign.list_files(places, one))) for one in wanted]
    left = [one for one in begun if packing_plan.work_bytes(one.path) or packing_plan.has_leftovers(one.path)]
    return ForeignWork(places, tuple(one for one in listed if _choose(one[1])), tuple(left), broken)


def plan(work: ForeignWork) -> list[dict[str, Any]]:
    """The expected sizes, for --dry-run."""
    planned = [changes.plan_packing(one, lossy=False) for one in work.begun]
    for found, entries in work.found:
        stored = packing_plan.estimate_files(work.places.checkpoints[0], entries)
        planned.append(changes.describe_packing(_saved(found), stored))
    return planned


def pack(work: ForeignWork, on_read: Read) -> list[dict[str, Any]]:
    """Pack each of them. What cannot be packed is a result, so that the others still are."""
    done = [_describe_fault(_locate(work.places, step), fault, ()) for step, fault in work.broken]
    for one in work.begun:
        packs = partial(archive.compress, one.path, on_read=on_read)
        done.append(_work_on(one, layout.entries(one.path), packs, partial(packing_plan.measure, one.path)))
    for found, entries in work.found:
        packs = partial(foreign_archive.pack, work.places, found, on_read)
        after = partial(packing_plan.measure, foreign.locate(work.places, found.step))
        done.append(_work_on(_saved(found), entries, packs, after))
    return done


def _locate(places: StepPlaces, step: int) -> SavedCheckpoint:
    return SavedCheckpoint(step, str(foreign.locate(places, step)), 0, "")


def _saved(found: FoundStep) -> SavedCheckpoint:
    return SavedCheckpoint(found.step, str(found.parts[0]), 0, "")


def _work_on(
    found: SavedCheckpoint,
    entries: Sequence[ManifestEntry],
    work: Callable[[], None],
    measure: Callable[[], StoredSize],
) -> dict[str, Any]:
    """Do the work on one checkpoint. `measure`: its size afterwards."""
    began = time.perf_counter()
    try:
        work()
    except (archive.DamagedError, OSError) as error:
        return _describe_fault(found, error, entries)
    return changes.describe_packing(found, measure(), seconds=time.perf_counter() - began)


def _describe_fault(
    found: SavedCheckpoint, error: archive.DamagedError | OSError, entries: Sequence[ManifestEntry]
) -> dict[str, Any]:
    problem = f"broken: {error}"
    if isinstance(error, OSError):
        problem = f"{error.strerror or error}: {error.filename or found.path}"
    return changes.describe_packing(found, packing_plan.sum_sizes(entries), problem=problem)


def unpack(run_dir: RunDir, places: StepPlaces, step: int | None, on_read: Read) -> list[dict[str, Any]]:
    """Restore packed checkpoints under their own names. The caller holds the run."""
    _refuse_shared(places)
    faults = foreign_archive.finish_moves(places)
    packed = foreign.list_packed(places, step)
    if step is not None and not packed:
        raise UserError(
            what=f"no packed checkpoint of step {step}",
            where=str(places.checkpoints[0] / foreign.FOLDER),
            why="only what `ckpt compress` has packed can be restored",
            fix=f"prime-train ckpt list {run_dir.path.name}",
        )
    done = []
    for one in packed:
        if one.step in faults:
            done.append(_describe_fault(one, faults[one.step], ()))
            continue
        entries = [] if one.problem else layout.entries(one.path)
        size_bytes = packing_plan.sum_sizes(entries).size_bytes
        unpacks = partial(foreign_archive.unpack, places, one.step, on_read)
        done.append(_work_on(one, entries, unpacks, partial(StoredSize, size_bytes, size_bytes)))
    return done


def count_packed_bytes(places: StepPlaces, step: int | None) -> int:
    packed = (one for one in foreign.list_packed(places, step) if one.complete)
    return sum(packing_plan.packed_bytes(one.path) for one in packed)


def _refuse_shared(places: StepPlaces) -> None:
    folder = places.checkpoints[0]
    if not hold_folder(folder):
        raise UserError(
            what="another supervised run writes into the same folder",
            where=str(folder),
            why="its trainer could load or delete a checkpoint that is moved",
            fix="wait for its end; prime-train status shows the runs of this folder",
        )


def _refuse_layout(run_dir: RunDir, places: StepPlaces, *, lossy: bool) -> None:
    program, _ = recorded(run_dir)
    form = places.layout
    if lossy and form.packs:
        raise UserError(
            what="--moments rounds only checkpoints that prime-train wrote",
            where=str(run_dir.path),
            why="where the moments of AdamW are in the files of another trainer is not known",
            fix=f"prime-train ckpt compress {run_dir.path.name} packs without loss",
        )
    if form.packs:
        return
    why = "it has no manifest with the hash of every file, against which a packed file is checked"
    if places.outputs:
        why = "its layout is not known, so nothing shows which are complete; command.checkpoints.layout names one"
    elif form.proofs:
        why = form.packs_source or "nothing shows that its trainer leaves a folder beside its checkpoints alone"
    raise UserError(
        what=f"a checkpoint of {program.title} cannot be packed",
        where=str(run_dir.path),
        why=why,
        fix=f"prime-train ckpt prune {run_dir.path.name} deletes checkpoints that newer ones supersede",
    )


def _refuse_step(run_dir: RunDir, step: int, found: FoundStep | None) -> None:
    if found is not None and not found.obstacle:
        return
    raise UserError(
        what=f"the checkpoint of step {step} is not packed",
        where=str(run_dir.path),
        why=found.obstacle if found is not None else "there is no complete checkpoint of this step",
        fix=f"prime-train ckpt list {run_dir.path.name}",
    )
