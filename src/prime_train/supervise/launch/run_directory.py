"""Creates the directory of a run, writes its config there, and chooses the checkpoint to resume from."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Literal

from prime_train.checkpoints.layout import Checkpoint, inspect
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.spec import RunSpec, from_json, to_json
from prime_train.supervise.lock import unwritable_error
from prime_train.supervise.state import State

Resume = Literal["auto", "never"] | int


@dataclass(frozen=True, slots=True)
class Opened:
    """A run directory that is ready. `run` has absolute paths; `notes` are messages for the user."""

    run: RunSpec
    run_dir: RunDir
    state: State  # from the events of earlier supervisors
    fresh: bool  # it has no events yet
    finished: bool  # the run is complete
    notes: tuple[str, ...] = ()


def is_finished(state: State, run: RunSpec) -> bool:
    """Whether an attempt finished at or after the last step of the config."""
    return state.attempt is not None and state.attempt.outcome == "finished" and state.step >= run.run.max_steps


def read_run_spec(run_dir: RunDir) -> RunSpec | None:
    """Read the RunSpec that the run was started with; None for a new run. Raises UserError."""
    try:
        return from_json(run_dir.resolved.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:  # pydantic's ValidationError is one
        raise UserError(
            what=f"it cannot be read: {str(error).splitlines()[0]}",
            where=str(run_dir.resolved),
            why="the settings of the run are not known, so it is not known whether it can continue",
            fix="put the file back, or start another run with --run-name",
        ) from None


def make_writable(run_dir: RunDir) -> None:
    """Create the directory if it does not exist. Raises UserError if it is not writable."""
    try:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        if not os.access(run_dir.path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable_error(error, run_dir) from None


def write_config(text: str, run: RunSpec, run_dir: RunDir, before: RunSpec | None) -> None:
    """Write the text of the config, and the RunSpec if it changed. Raises UserError."""
    try:
        _replace_config(text, run_dir)
        if before != run:
            write_atomic(run_dir.resolved, to_json(run))
    except OSError as error:
        raise unwritable_error(error, run_dir) from None


def _replace_config(text: str, run_dir: RunDir) -> None:
    """Write config.toml; an older, different text is kept beside it as config.N.toml."""
    earlier = run_dir.config.read_text(encoding="utf-8") if run_dir.config.exists() else None
    if earlier == text:
        return
    if earlier is not None:
        kept = (run_dir.path / f"config.{number}.toml" for number in count(1))
        write_atomic(next(path for path in kept if not path.exists()), earlier)
    write_atomic(run_dir.config, text)


def apply_micro_batch(run: RunSpec, run_dir: RunDir, micro_batch: int | None) -> RunSpec:
    """Write the run with this micro-batch for the next attempt; unchanged if its own is not larger."""
    if micro_batch is None or run.batch.micro_batch <= micro_batch:
        return run
    run = shrink(run, micro_batch)
    write_atomic(run_dir.resolved, to_json(run))
    return run


def shrink(run: RunSpec, micro_batch: int) -> RunSpec:
    """The run with this micro-batch and the same global batch, which is set because its default depends on it."""
    in_tokens = run.batch.global_batch_tokens is not None
    global_batch = run.batch.global_batch if in_tokens else run.global_batch
    return replace(run, batch=replace(run.batch, micro_batch=micro_batch, global_batch=global_batch))


# --- which checkpoint to resume from ----------------------------------------------------------------


def find_newer_checkpoints(
    resume: Resume, found: Sequence[Checkpoint], run_dir: RunDir, folder: Path, *, hashes: bool
) -> list[Checkpoint]:
    """The checkpoints in `folder` that are newer than `resume`. Raises UserError.

    `hashes`: verify every byte of the named checkpoint, because no later check would choose another one.
    """
    match resume:
        case "auto":
            return []
        case "never" if found:
            raise UserError(
                what=f"the run has checkpoints, the newest at step {found[0].step}",
                where=str(folder),
                why="--resume never starts from the beginning and would overwrite them",
                fix=f"start another run with `--run-name {run_dir.path.name}-2`, or continue with --resume auto",
            )
        case "never":
            return []
        case step:
            named = next((checkpoint for checkpoint in found if checkpoint.step == step), None)
            _require_complete(step, inspect(named.path, hashes=True) if named and hashes else named, found, folder)
            return [checkpoint for checkpoint in found if checkpoint.step > step]


def _require_complete(step: int, named: Checkpoint | None, found: Sequence[Checkpoint], folder: Path) -> None:
    problem = "there is no such checkpoint" if named is None else named.problem
    if problem:
        have = ", ".join(str(one.step) for one in reversed(found) if one.complete) or "none"
        raise UserError(
            what=f"step {step} cannot be resumed from: {problem}",
            where=str(named.path if named is not None else folder),
            why="only a complete checkpoint holds the whole state of a run",
            fix=f"complete checkpoints: {have}; or --resume auto for the newest",
            exit_code=ExitCode.USAGE,
        )


def set_aside(path: Path, names: Iterator[str]) -> Path:
    """Rename to the first of `names` that is free in its folder. Returns the new path."""
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    path.rename(target)
    return target
