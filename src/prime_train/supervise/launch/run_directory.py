"""Opens the directory of a run: creates it or continues in it, and keeps its config. Starts and deletes nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from prime_train.checkpoints import folder_layout
from prime_train.checkpoints.layout import SavedCheckpoint, inspect
from prime_train.checkpoints.packing import foreign
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES, RECORD_BYTES, OutsideError
from prime_train.core.plans import drop_plan, is_dropped, read_plans
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import Follower
from prime_train.events.bounds import MOST_STEPS
from prime_train.spec import ENDLESS_STEPS, RunSpec, from_json, to_json
from prime_train.spec.answers import find_missing_part, global_batch, traits_of
from prime_train.supervise.core.fold import fold_all
from prime_train.supervise.core.state import State
from prime_train.supervise.processes.lock import check_folders, unwritable_error

Resume = Literal["auto", "never"] | int


@dataclass(frozen=True, slots=True)
class Opened:
    """A run directory that is ready. `run` has absolute paths; `notes` are for the user."""

    run: RunSpec
    run_dir: RunDir
    state: State  # as earlier supervisors left it
    fresh: bool  # nothing has happened in it yet
    finished: bool  # nothing is left to do
    notes: tuple[str, ...] = ()


def is_finished(state: State, run: RunSpec, run_dir: RunDir, last_step: int | None = None) -> bool:
    """Whether an attempt has finished at or beyond the last step of the run, and its export is there if it has one."""
    last = run.run.max_steps if last_step is None else last_step
    is_at_end = state.step >= last or last >= ENDLESS_STEPS
    if state.attempt is None or state.attempt.outcome != "finished" or not is_at_end:
        return False
    return run.checkpoint.final != "hf" or run_dir.final.is_dir()


class Earlier(NamedTuple):
    """A run directory as earlier supervisors left it."""

    run: RunSpec | None  # None if the run has not begun
    state: State


def read_earlier(run_dir: RunDir, run: RunSpec, *, writes: bool) -> Earlier:
    """Read the directory of a run. `writes`: create it if there is none. Raises UserError."""
    _require_writable(run_dir, writes=writes)
    return Earlier(read_run_spec(run_dir, likely=run), fold_all(Follower(run_dir.events).stream()))


_LAST_STEP = "run.max_steps"


def find_last_step(run: RunSpec, state: State, run_dir: RunDir, until_step: int = MOST_STEPS) -> int:
    """The last step of the run: one that was changed while it trained, unless the config has changed since.

    Changes that began after `until_step` do not count.
    """
    # Not state.max_steps: each supervisor begins with that of the config, and its trainer may fail before a step.
    last, steps = run.run.max_steps, dict(state.settings_applied)
    for plan in read_plans(run_dir.settings) if run.command is None else ():
        value, begins = plan.values.get(_LAST_STEP), steps.get(plan.version, MOST_STEPS + 1)
        if isinstance(value, int) and plan.config.get(_LAST_STEP) == run.run.max_steps and begins <= until_step:
            last = max(value, begins)  # a run that is beyond it ends after the step of the change
    return last


class ChangedValue(NamedTuple):
    """A value that may not change between two attempts of a run."""

    name: str
    before: object
    after: object
    why: str  # it may not change


def refuse_changes(changes: Sequence[ChangedValue], run_dir: RunDir) -> None:
    """Raise UserError if there is a change."""
    if changes:
        texts = [f"{one.name} is {_show(one.after)}, the run began with {_show(one.before)}" for one in changes]
        why = "; ".join(dict.fromkeys(one.why for one in changes))
        fix = f"undo the change, or start another run with `--run-name {run_dir.path.name}-2`"
        raise UserError("; ".join(texts), str(run_dir.config), why, fix)


def _show(value: object) -> str:
    if value is None or value == "":
        return "unset"
    return value if isinstance(value, str) else repr(value)


def refuse_earlier_end(
    run: RunSpec, earlier: Earlier, resume: Resume, found: Sequence[SavedCheckpoint], run_dir: RunDir
) -> None:
    """Raise UserError if the run would continue from a step beyond its last one: it would train nothing."""
    newest = choose_checkpoint(found, earlier.state.unreadable)[0]
    step = min(resume, newest) if isinstance(resume, int) else newest
    last = find_last_step(run, earlier.state, run_dir, resume if isinstance(resume, int) else MOST_STEPS)
    if resume != "never" and step > last:
        key = traits_of(run).max_steps_key
        what = f"{key} is {last:,}, and the run has reached step {step:,}"
        fix = f"set {key} to {step:,} or more, or go back to an earlier checkpoint with --resume STEP"
        raise UserError(what, str(run_dir.path), "it would continue from there, and train nothing", fix)


def set_newer_aside(
    resume: Resume,
    found: Sequence[SavedCheckpoint],
    places: StepPlaces,
    run_dir: RunDir,
    rename: Callable[[str, int], str],
    *,
    hashes: bool,
    writes: bool,
) -> list[str]:
    """Rename the checkpoints that are newer than `resume`, also packed ones.

    Returns a note for each. Raises UserError. `rename(name, number)` is a new name for a folder; `number` starts at 1.
    Nothing is renamed without `writes`.
    """
    # Renamed and not deleted: the user may have named the wrong step.
    newer = _list_newer(resume, found, run_dir, places.checkpoints[0], hashes=hashes)
    saved = folder_layout.steps(places.checkpoints, places.layout)
    paths = [path for checkpoint in newer for path in saved.get(checkpoint.step, [])]  # links are left alone
    notes = []
    for path in (*_list_newer_packed(resume, places), *paths):
        target = (set_aside if writes else _find_free)(path, (rename(path.name, number) for number in count(1)))
        notes.append(f"{path} is newer than the step to resume from: kept as {target.name}")
    return notes


def drop_later_changes(resume: Resume, earlier: Earlier, run_dir: RunDir, *, writes: bool) -> list[str]:
    """Drop the changes of settings that began after the step of a person's choice.

    Returns a note for each. Nothing is dropped without `writes`. Raises OSError.
    """
    if not isinstance(resume, int):  # after a kill each change is made again at its step
        return []
    notes = []
    for version, step in earlier.state.settings_applied:
        if step > resume and not is_dropped(run_dir.settings, version):
            # Made again at its step, a change that ruined the run would ruin it once more.
            if writes:
                drop_plan(run_dir.settings, version)
            notes.append(f"settings version {version} began at step {step}, after the step to resume from: dropped")
    return notes


def finish_opening(
    text: str | None,
    run: RunSpec,
    run_dir: RunDir,
    earlier: Earlier,
    notes: Sequence[str],
    *,
    rewound: bool,
    otherwise: str,
) -> Opened:
    """Write the config; nothing if `text` is None.

    `rewound`: newer checkpoints were set aside. `otherwise`: a note if the run is not finished.
    """
    if text is not None:
        _write(text, run, run_dir, earlier.run)
    state = earlier.state
    finished = not rewound and is_finished(state, run, run_dir, find_last_step(run, state, run_dir))
    reached = state.attempt.what if state.attempt is not None and state.attempt.what else state.progress_text
    last = f"{run.run.name} is finished: {reached}" if finished else otherwise
    return Opened(run, run_dir, state, not state.attempts, finished, (*notes, *([last] if last else [])))


def read_run_spec(run_dir: RunDir, likely: RunSpec | None = None) -> RunSpec | None:
    """The RunSpec that the run began with; None if it has not begun.

    Raises UserError. `likely` is returned if the file has its very text: to prepare pydantic for any text takes 65 ms
    of a restart.
    """
    try:
        text = outside.read_text(run_dir.resolved, RECORD_BYTES, run_dir.path)
        if likely is not None and text == to_json(likely):
            return likely
        found = from_json(text)
        # Each field may be right alone: an edited kind without the table of that kind.
        if lacks := find_missing_part(found):
            raise ValueError(lacks)
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
        why = "the first config of the run is not known, so it is not known whether the run may continue"
        fix = "put the file back, or start another run with --run-name"
        raise UserError(f"it cannot be read: {reason}", str(run_dir.resolved), why, fix) from None


def _require_writable(run_dir: RunDir, *, writes: bool) -> None:
    """Raise UserError if a run could not write into the directory. `writes`: create it if there is none."""
    try:
        if writes:
            run_dir.path.parent.mkdir(parents=True, exist_ok=True)
            make_folder(run_dir.path)
        existing = next(folder for folder in (run_dir.path, *run_dir.path.parents) if folder.exists())
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable_error(error, run_dir) from None
    check_folders(run_dir)


def _write(text: str, run: RunSpec, run_dir: RunDir, before: RunSpec | None) -> None:
    """Write the text of the config, and the RunSpec if it has changed. Raises UserError."""
    try:
        _replace_config(text, run_dir)
        if before != run:
            write_atomic(run_dir.resolved, to_json(run))
    except OSError as error:
        raise unwritable_error(error, run_dir) from None


def _replace_config(text: str, run_dir: RunDir) -> None:
    """Write config.toml; an earlier text is kept beside it as config.N.toml."""
    try:
        earlier = outside.read_text(run_dir.config, CONFIG_BYTES, run_dir.path)
    except (FileNotFoundError, OutsideError, ValueError):  # ValueError: it was damaged
        earlier = None  # write_atomic replaces a link or a pipe, and leaves what a link names
    if earlier == text:
        return
    if earlier is not None:
        # An attempt can be explained only by the config that it had, so no text is lost.
        write_atomic(run_dir.earlier_config(number_config(run_dir)), earlier)
    write_atomic(run_dir.config, text)


def number_config(run_dir: RunDir) -> int:
    """The number of the text in config.toml, from 1: each earlier text is kept under its own number."""
    return next(number for number in count(1) if not os.path.lexists(run_dir.earlier_config(number)))


def apply_micro_batch(run: RunSpec, run_dir: RunDir, micro_batch: int | None) -> RunSpec:
    """The run with this micro-batch, written for the next attempt; unchanged if its own is not larger."""
    if micro_batch is None or run.batch.micro_batch <= micro_batch:
        return run
    run = shrink(run, micro_batch)
    write_atomic(run_dir.resolved, to_json(run))
    return run


def restore_run_spec(run: RunSpec, run_dir: RunDir) -> None:
    """Write resolved.json where it is not that of `run`.

    Each attempt reads it, and by then it may be deleted or cut. Raises OSError.
    """
    with contextlib.suppress(UserError):  # it cannot be read
        if read_run_spec(run_dir, likely=run) == run:
            return
    write_atomic(run_dir.resolved, to_json(run))


def write_applied(applied: Sequence[tuple[int, int]], run_dir: RunDir, attempt: int, resume_step: int = 0) -> None:
    """Write down which changes of settings were in force from which step on, for an attempt that repeats these steps.

    `applied`: (version, step). Without any there is no file. Raises OSError.
    """
    # A dropped version has no values, so it is passed at once: the next change must not wait for its step.
    applied = [
        (version, min(step, resume_step + 1) if is_dropped(run_dir.settings, version) else step)
        for version, step in applied
    ]
    if applied:
        make_folder(run_dir.attempt(attempt))
        write_atomic(run_dir.applied_settings(attempt), json.dumps({"applied": applied}))


def shrink(run: RunSpec, micro_batch: int) -> RunSpec:
    """The run with this micro-batch. A global batch that the config omits would change with it, so it is set."""
    # A batch that is set in tokens does not depend on the micro-batch, so it stays as it is written.
    in_tokens = run.batch.global_batch_tokens is not None
    sequences = run.batch.global_batch if in_tokens else global_batch(run)
    return replace(run, batch=replace(run.batch, micro_batch=micro_batch, global_batch=sequences))


def _list_newer(
    resume: Resume, found: Sequence[SavedCheckpoint], run_dir: RunDir, folder: Path, *, hashes: bool
) -> list[SavedCheckpoint]:
    """The checkpoints in `folder` that are newer than `resume`.

    Raises UserError. `hashes`: every byte of the named checkpoint is read, because no later check notices another
    choice.
    """
    match resume:
        case "auto":
            return []
        case "never" if found:
            why = "--resume never starts from the beginning and would overwrite them"
            fix = f"start another run with `--run-name {run_dir.path.name}-2`, or continue with --resume auto"
            raise UserError(f"the run has checkpoints, the newest at step {found[0].step}", str(folder), why, fix)
        case "never":
            return []
        case step:
            named = next((checkpoint for checkpoint in found if checkpoint.step == step), None)
            _require_complete(step, inspect(named.path, hashes=True) if named and hashes else named, found, folder)
            return [checkpoint for checkpoint in found if checkpoint.step > step]


def _list_newer_packed(resume: Resume, places: StepPlaces) -> list[Path]:
    """Else the next start would be refused because a newer one is packed, of the steps that the user has left."""
    return [one.path for one in foreign.list_packed(places) if isinstance(resume, int) and one.step > resume]


def _require_complete(step: int, named: SavedCheckpoint | None, found: Sequence[SavedCheckpoint], folder: Path) -> None:
    problem = "there is no such checkpoint" if named is None else named.problem
    if problem:
        have = ", ".join(str(one.step) for one in reversed(found) if one.complete) or "none"
        what = f"step {step} cannot be resumed from: {problem}"
        why = "only a complete checkpoint holds the whole state of a run"
        fix = f"complete checkpoints: {have}; or --resume auto for the newest"
        raise UserError(what, str(named.path if named is not None else folder), why, fix, ExitCode.USAGE)


def set_aside(path: Path, names: Iterator[str]) -> Path:
    """Rename to the first of `names` that is free in its folder. Returns the new path."""
    return path.rename(_find_free(path, names))


def _find_free(path: Path, names: Iterator[str]) -> Path:
    """The path with the first of `names` that is free in its folder."""
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


def find_newest_complete(newest_first: Sequence[SavedCheckpoint]) -> SavedCheckpoint | None:
    return next((checkpoint for checkpoint in newest_first if checkpoint.complete), None)


def choose_checkpoint(
    newest_first: Sequence[SavedCheckpoint], unreadable: Collection[int]
) -> tuple[int, tuple[str, ...]]:
    """The step to resume from (0 = the beginning), and why each newer checkpoint is rejected."""
    rejected: list[str] = []
    for checkpoint in newest_first:
        # A complete manifest proves the bytes, and not that this code can load them.
        if checkpoint.complete and checkpoint.step not in unreadable:
            return checkpoint.step, tuple(rejected)
        problem = checkpoint.problem or "the trainer could not load it"
        rejected.append(f"step_{checkpoint.step}: {problem}")
    return 0, tuple(rejected)


def would_lose_checkpoints(newest_first: Sequence[SavedCheckpoint], run: RunSpec) -> bool:
    """Whether a start from the beginning loses more than one checkpoint interval, which any crash may lose."""
    # The interval of a command is not known. Its first save may be cut, and a second one proves an interval.
    if run.command is not None:
        return len(newest_first) > 1
    # Incomplete ones count too: they show how far the run had come.
    newest = newest_first[0].step if newest_first else 0
    return newest > (run.checkpoint.interval_steps or 0)
