"""Opens the run directory of a run of prime-rl. Starts and deletes nothing.

Its checkpoints are in prime-rl's own folder, which may be older than the run directory: a run that was begun without
prime-train goes on from its newest complete checkpoint.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events import read
from prime_train.programs.prime_rl import layout
from prime_train.spec import RunSpec
from prime_train.supervise.fold import fold_all
from prime_train.supervise.launch.run_directory import (
    Opened,
    Resume,
    find_newer_checkpoints,
    is_finished,
    make_writable,
    read_run_spec,
    set_aside,
    write_config,
)

_LAUNCHERS_OWN = ("configs", "rl.sbatch", "sft.sbatch")  # prime-rl passes over these: utils/pathing.py
_IN_USE_S = 120.0  # a log that was written to so lately belongs to a run that may still be on

_FIXED = (
    ("generation", "each version of prime-rl writes its checkpoints in its own way"),
    ("output_dir", "the checkpoints of the run are there, and prime-rl starts from scratch where it finds none"),
    ("run_dir", "the checkpoints of the run are there, and prime-rl starts from scratch where it finds none"),
)


def open_run(text: str, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
    """Create the directory of a run, or go on in it. `run` is as settings.named left it, `text` as written.

    The caller holds the run's lock. Raises UserError where the run cannot go on; nothing has been changed then.
    """
    make_writable(run_dir)
    before = read_run_spec(run_dir)
    state = fold_all(read(run_dir.events))
    found = layout.checkpoints(run)
    if before is not None and found:
        _refuse_changes(before, run, run_dir)
    if not state.attempts:
        _refuse_foreign(run, found)
    wanted = _asked(run, resume) if not state.attempts else resume
    aside = find_newer_checkpoints(wanted, found, run_dir, layout.folder(run), hashes=False)
    notes = [_set_aside(part) for checkpoint in aside for part in layout.parts_of(run, checkpoint)]
    write_config(text, run, run_dir, before)
    finished = not aside and is_finished(state, run)
    if finished:
        notes.append(f"{run.run.name} is finished: step {state.step} of {run.run.max_steps}")
    elif not state.attempts and any(checkpoint.complete for checkpoint in found):
        notes.append(f"{layout.folder(run)} has checkpoints of an earlier start: the run goes on from there")
    return Opened(run, run_dir, state, fresh=not state.attempts, finished=finished, notes=tuple(notes))


def run_id(run_dir: RunDir, environment: Mapping[str, str]) -> str:
    """The id that prime-rl and W&B know the run by: that of its first start. Written down where there is none yet."""
    file = run_dir.path / layout.RUN_ID
    try:
        known = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = environment.get("PRL_RUN_ID") or uuid.uuid4().hex
        write_atomic(file, f"{known}\n")
    return known


def known_run_id(run_dir: RunDir, environment: Mapping[str, str]) -> str:
    """The id as it would be, for a plan that writes nothing."""
    file = run_dir.path / layout.RUN_ID
    return file.read_text(encoding="ascii").strip() if file.exists() else environment.get("PRL_RUN_ID", "(a fresh one)")


# --- what is in the way ----------------------------------------------------------------------------


def _set_aside(path: Path) -> str:
    """Rename to a name that prime-rl takes for no step: it reads the number behind the last `_`."""
    names = chain([f"aside.{path.name}"], (f"aside.{number}.{path.name}" for number in count(2)))
    return f"{path} was in the way: kept as {set_aside(path, names).name}"


def _asked(run: RunSpec, resume: Resume) -> Resume:
    """The step that the config itself asks for, which holds for the first start. A fork is from another run."""
    said = run.resume
    if resume != "auto" or said is None or said.dir is not None or not said.step or said.step < 1:
        return resume
    return said.step


def _refuse_changes(before: RunSpec, after: RunSpec, run_dir: RunDir) -> None:
    """Where the checkpoints are may not change under a run. All else is prime-rl's to judge when it loads them."""
    old, new = before.launch, after.launch
    for name, why in _FIXED:
        was, is_now = getattr(old, name, None), getattr(new, name, None)
        if was != is_now:
            raise UserError(
                what=f"{name} is {is_now or 'unset'}, the run was begun with {was or 'unset'}",
                where=str(run_dir.config),
                why=why,
                fix=f"undo the change, or start another run with `--run-name {run_dir.path.name}-2`",
            )


def _refuse_foreign(run: RunSpec, found: Sequence[Checkpoint]) -> None:
    """A folder that this run has never written to: files in it are somebody's, and may be in use."""
    folder = layout.folder(run)
    left = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    left = [name for name in left if name not in _LAUNCHERS_OWN and not name.startswith(("job_", "aside."))]
    if not left:
        return
    silent_s = time.time() - _written_s(folder)
    if silent_s < _IN_USE_S:
        raise UserError(
            what=f"something wrote there {silent_s:.0f} s ago",
            where=str(folder),
            why="two runs in one folder write over each other's checkpoints",
            fix=f"end the other run and give the command again after {_IN_USE_S:.0f} s; or give another --run-name",
        )
    if not any(checkpoint.complete for checkpoint in found):
        raise UserError(
            what=f"it has {', '.join(left[:4])} in it, and no complete checkpoint to go on from",
            where=str(folder),
            why="prime-rl refuses a folder with an earlier run's files in it, and nothing is deleted here",
            fix=f"give another --run-name, or `mv {folder} {folder.with_name(f'{folder.name}-before')}`",
        )


def _written_s(folder: Path) -> float:
    """When a log or the metrics were written to last."""
    logs = (Path(root, name) for root, _, names in os.walk(folder / "logs") for name in names)
    files = (path for path in (*logs, folder / "metrics.jsonl") if path.is_file())
    return max((path.stat().st_mtime for path in files), default=0.0)
