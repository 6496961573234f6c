"""Opens the run directory of a run of prime-rl, locates its outputs, and decides when its checkpoint is complete.

Starts and deletes nothing. The checkpoints are in prime-rl's own folder, which may be older than the run directory: a
run that began without prime-train continues from its newest complete checkpoint.

prime-rl writes no marker after a checkpoint and takes the highest step_N as the latest one. Two files show that a save
has finished: torch writes the trainer's `.metadata` after all shards, and the orchestrator writes
`progress.pt`. In 2026-08 everything is below one run directory; before, the orchestrator's part was below run_default/,
and weights were exported to weights/.

Source: prime-rl, trainer/ckpt.py, orchestrator/ckpt.py and utils/pathing.py of 2026-01, 2026-05 and 2026-08.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from prime_train.checkpoints import step_folders
from prime_train.checkpoints.folder_layout import FolderLayout, Marker
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MARK_BYTES
from prime_train.core.rundir import RunDir, write_atomic
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

_METADATA = ("trainer/.metadata", ".metadata")
ROLE = "prime_rl"
RUN_ID = "prime_rl_run_id"  # a file of the run directory, which no other run has
COPY = "prime_rl.toml"  # the copy of the config, in the folder of an attempt
ROOTS = ("rl", "sft")  # roots with a launcher; every other root is one part of a run
_TRAINER = Marker(_METADATA, "no .metadata: the trainer's save did not finish")
_ORCHESTRATOR = Marker(
    ("orchestrator/progress.pt", "progress.pt"), "no orchestrator/progress.pt: the orchestrator's save did not finish"
)
_LOGS = (".log", ".stdout", ".stderr")
_LAUNCHERS_OWN = ("configs", "rl.sbatch", "sft.sbatch")  # prime-rl ignores these: utils/pathing.py
_IN_USE_S = 120.0  # a log that was written this recently may belong to a living run
_FIXED = (
    ("generation", "each version of prime-rl writes its checkpoints in its own way"),
    ("output_dir", "the checkpoints of the run are there, and prime-rl starts from scratch if it finds none"),
    ("run_dir", "the checkpoints of the run are there, and prime-rl starts from scratch if it finds none"),
)


def folder_layout(*, orchestrated: bool) -> FolderLayout:
    """`orchestrated`: the run has an orchestrator, which saves its own part."""
    return FolderLayout(markers=(_TRAINER, _ORCHESTRATOR) if orchestrated else (_TRAINER,), metadata=_METADATA)


def find_folder(run: RunSpec) -> Path:
    """The absolute folder of a run that `settings.prepare_run` returned."""
    launch = prime_rl_of(run).launch
    assert launch.output_dir is not None
    return Path(launch.output_dir) / (launch.run_dir or launch.run_name or "")


def list_places(run: RunSpec, folder: Path) -> StepPlaces:
    """The folders of a run in `folder` that grow with its steps."""
    parts = prime_rl_of(run)
    apart = parts.saving.output_dir if parts.saving is not None else None
    return locate_places(folder, Path(apart).absolute() if apart else None, orchestrated=parts.rollout is not None)


def locate_places(folder: Path, checkpoint_dir: Path | None = None, *, orchestrated: bool) -> StepPlaces:
    """The same for any generation. `checkpoint_dir`: ckpt.output_dir if the config sets it."""
    own = (folder, folder / "run_default")
    saved = [root / "checkpoints" for root in own]
    if checkpoint_dir is not None:
        saved[:0] = [checkpoint_dir / "checkpoints", checkpoint_dir]
    return StepPlaces(
        folder,
        tuple(saved),
        folder_layout(orchestrated=orchestrated),
        weights=(folder / "weights",),
        broadcasts=tuple(root / "broadcasts" for root in own),
        rollouts=tuple(root / "rollouts" for root in own),
    )


def list_checkpoints(run: RunSpec) -> list[SavedCheckpoint]:
    """Every checkpoint of the run, newest first. Its parts may be in several folders; `path` is the trainer's part."""
    found = list_places(run, find_folder(run))
    return step_folders.checkpoints(found.checkpoints, found.layout)


def list_logs(run: RunSpec, run_dir: RunDir, attempt: int) -> list[Path]:
    """Every log of one attempt: the launcher's, and the logs of its parts that were written since it started."""
    own = run_dir.log(attempt, ROLE)
    copy = run_dir.attempt(attempt) / COPY
    if not copy.exists():
        return []
    since_s = copy.stat().st_mtime  # it is written before any process starts
    found = {own} if own.exists() else set()
    for root in (find_folder(run) / "logs", find_folder(run) / "torchrun"):
        for directory, _, names in os.walk(root):  # does not follow `latest`, a link to another folder here
            for name in names:
                path = Path(directory, name)
                if path.suffix in _LOGS and _read_changed_s(path) >= since_s:
                    found.add(path)
    return sorted(found)


def _read_changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def open_run(text: str | None, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
    """Create the directory of a run, or continue in it.

    `run` is the result of settings.prepare_run, `text` as written; without it nothing is written or renamed, as for a
    dry run.

    The caller holds the run's lock. Raises UserError if the run cannot continue; then nothing has been changed.
    """
    writes = text is not None
    earlier = read_earlier(run_dir, run, writes=writes)
    folder, found = find_folder(run), list_checkpoints(run)
    is_first = not earlier.state.attempts
    if earlier.run is not None and found:
        refuse_changes(list(list_changes(earlier.run, run)), run_dir)
    if is_first:
        _refuse_foreign(run, found)
        resume = _read_resume(run, resume)
    refuse_earlier_end(run, earlier, resume, found, run_dir)
    places = list_places(run, folder)
    aside = set_newer_aside(resume, found, places, run_dir, _name_aside, hashes=False, writes=writes)
    is_old = is_first and any(checkpoint.complete for checkpoint in found)
    otherwise = f"{folder} has checkpoints of an earlier start: the run continues from there" if is_old else ""
    return finish_opening(text, run, run_dir, earlier, aside, rewound=bool(aside), otherwise=otherwise)


def run_id(run_dir: RunDir, environment: Mapping[str, str], *, writes: bool) -> str:
    """The id that prime-rl and W&B use for the run: that of its first start. `writes`: keep it if it is new."""
    file = run_dir.path / RUN_ID
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


def list_changes(before: RunSpec, after: RunSpec) -> Iterator[ChangedValue]:
    """The place of the checkpoints may not change. prime-rl itself judges all other changes when it loads them."""
    for name, why in _FIXED:
        old, new = getattr(prime_rl_of(before).launch, name, None), getattr(prime_rl_of(after).launch, name, None)
        if old != new:
            yield ChangedValue(name, old, new, why)


def _refuse_foreign(run: RunSpec, found: Sequence[SavedCheckpoint]) -> None:
    """A folder that this run has never written to: its files belong to another run, and may be in use."""
    folder = find_folder(run)
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
