"""Opens the run directory of a run of prime-rl. Starts and deletes nothing.

Its checkpoints are in prime-rl's own folder, which may be older than the run directory: a run that began without
prime-train continues from its newest complete checkpoint.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MARK_BYTES
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.programs.prime_rl import layout
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.supervise.launch.run_directory import (
    ChangedValue,
    Opened,
    Resume,
    finish_opening,
    read_earlier,
    refuse_changes,
    refuse_earlier_end,
    set_newer_aside,
)

_LAUNCHERS_OWN = ("configs", "rl.sbatch", "sft.sbatch")  # prime-rl ignores these: utils/pathing.py
_IN_USE_S = 120.0  # a log that was written this recently may belong to a living run

_FIXED = (
    ("generation", "each version of prime-rl writes its checkpoints in its own way"),
    ("output_dir", "the checkpoints of the run are there, and prime-rl starts from scratch if it finds none"),
    ("run_dir", "the checkpoints of the run are there, and prime-rl starts from scratch if it finds none"),
)


def open_run(text: str | None, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
    """Create the directory of a run, or continue in it. `run` is the result of settings.prepare_run, `text` as written;
    without it nothing is written or renamed, as for a dry run.

    The caller holds the run's lock. Raises UserError if the run cannot continue; then nothing has been changed.
    """
    writes = text is not None
    earlier = read_earlier(run_dir, run, writes=writes)
    folder, found = layout.folder(run), layout.checkpoints(run)
    is_first = not earlier.state.attempts
    if earlier.run is not None and found:
        refuse_changes(list(_list_changes(earlier.run, run)), run_dir)
    if is_first:
        _refuse_foreign(run, found)
        resume = _read_resume(run, resume)
    refuse_earlier_end(run, earlier, resume, found, run_dir)
    places = layout.places(run, folder)
    aside = set_newer_aside(resume, found, places, run_dir, _name_aside, hashes=False, writes=writes)
    is_old = is_first and any(checkpoint.complete for checkpoint in found)
    otherwise = f"{folder} has checkpoints of an earlier start: the run continues from there" if is_old else ""
    return finish_opening(text, run, run_dir, earlier, aside, rewound=bool(aside), otherwise=otherwise)


def run_id(run_dir: RunDir, environment: Mapping[str, str], *, writes: bool) -> str:
    """The id that prime-rl and W&B use for the run: that of its first start. `writes`: keep it if it is new."""
    file = run_dir.path / layout.RUN_ID
    known = outside.read_text(file, MARK_BYTES, run_dir.path).strip() if file.exists() else ""
    if not known:
        known = environment.get("PRL_RUN_ID") or (uuid.uuid4().hex if writes else "(a fresh one)")
        if writes:
            write_atomic(file, f"{known}\n")
    return known


# --- what is in the way ----------------------------------------------------------------------------


def _name_aside(name: str, number: int) -> str:
    """A name that prime-rl does not take for a step: it reads the number after the last `_`."""
    return f"aside.{name}" if number == 1 else f"aside.{number}.{name}"


def _read_resume(run: RunSpec, resume: Resume) -> Resume:
    """The step in the config, which counts for the first start. A fork is from another run."""
    config = prime_rl_of(run).resume
    if resume != "auto" or config is None or config.dir is not None or not config.step or config.step < 1:
        return resume
    return config.step


def _list_changes(before: RunSpec, after: RunSpec) -> Iterator[ChangedValue]:
    """The place of the checkpoints may not change. prime-rl itself judges all other changes when it loads them."""
    for name, why in _FIXED:
        old, new = getattr(prime_rl_of(before).launch, name, None), getattr(prime_rl_of(after).launch, name, None)
        if old != new:
            yield ChangedValue(name, old, new, why)


def _refuse_foreign(run: RunSpec, found: Sequence[SavedCheckpoint]) -> None:
    """A folder that this run has never written to: its files belong to another run, and may be in use."""
    folder = layout.folder(run)
    left = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    left = [name for name in left if name not in _LAUNCHERS_OWN and not name.startswith(("job_", "aside."))]
    if not left:
        return
    silent_s = time.time() - _read_last_write_s(folder)
    if silent_s < _IN_USE_S:
        raise UserError(
            what=f"something wrote there {silent_s:.0f} s ago",
            where=str(folder),
            why="two runs in one folder overwrite each other's checkpoints",
            fix=f"end the other run and give the command again after {_IN_USE_S:.0f} s; or give another --run-name",
        )
    if not any(checkpoint.complete for checkpoint in found):
        raise UserError(
            what=f"it contains {', '.join(left[:4])}, and no complete checkpoint to continue from",
            where=str(folder),
            why="prime-rl refuses a folder with files of an earlier run, and prime-train deletes nothing here",
            fix=f"give another --run-name, or `mv {folder} {folder.with_name(f'{folder.name}-before')}`",
        )


def _read_last_write_s(folder: Path) -> float:
    """When a log or the metrics were last written."""
    logs = (Path(root, name) for root, _, names in os.walk(folder / "logs") for name in names)
    files = (path for path in (*logs, folder / "metrics.jsonl") if path.is_file())
    return max((path.stat().st_mtime for path in files), default=0.0)
