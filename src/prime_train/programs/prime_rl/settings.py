"""Sets keys in a copy of a prime-rl file so that its run can be supervised, with a reason for each. Pure.

The user's own file is never changed. Its settings stay, except those that supervision excludes: a random name, a clean
start, no checkpoint to resume from. Source of the keys: the tables of registry/prime_rl; of their effects: prime-rl,
entrypoints/rl.py and utils/pathing.py of each generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.errors import UserError
from prime_train.spec import ENDLESS_STEPS, RunSpec, from_json, prime_rl_parts, to_json
from prime_train.spec.answers import prime_rl_of, replace_parts
from prime_train.toml.document import to_toml
from prime_train.toml.edit import EditRefused, edited

OURS = "prime_train"  # prime-rl refuses a table that it does not know
_OUTPUT_DIR = "outputs"  # prime-rl's own default, in every generation
_USUAL_INTERVAL = 50
_KEPT = 2  # checkpoints if the file sets none: the newest, and the one before it


@dataclass(frozen=True, slots=True)
class CopiedSetting:
    """One key of the copy. `value` None removes it. `is_notable`: the user should know of it."""

    key: str
    value: Any
    reason: str
    is_notable: bool = False

    @property
    def text(self) -> str:
        return f"without {self.key}" if self.value is None else f"{self.key} = {to_toml(self.value)}"


def prepare_run(run: RunSpec, name: str, cwd: Path) -> RunSpec:
    """The run with its name, folder and checkpoints fixed, as the copy will set them.

    Relative folders are below `cwd`, where the launcher starts.
    """
    launch, saving = prime_rl_of(run).launch, prime_rl_of(run).saving
    given = Path(launch.output_dir or _OUTPUT_DIR).expanduser()
    is_shared = launch.output_dir in (None, _OUTPUT_DIR)  # all runs share the default folder
    output_dir = cwd / given if features_of(run).names_runs or not is_shared else cwd / given / name
    elsewhere_dir = saving.output_dir if saving is not None else None
    if saving is not None and elsewhere_dir is not None:
        saving = saving._replace(output_dir=str(cwd / Path(elsewhere_dir).expanduser()))
    interval = run.checkpoint.interval_steps or choose_interval(run.run.max_steps)
    return replace_parts(
        _without_odd_parts(run),
        run=replace(run.run, name=name),
        checkpoint=replace(run.checkpoint, interval_steps=interval),
        launch=launch._replace(output_dir=str(output_dir), run_name=name if features_of(run).names_runs else None),
        saving=(saving or prime_rl_parts.Saving())._replace(keep_last=_KEPT) if _keeps_all(run) else saving,
    )


def _without_odd_parts(run: RunSpec) -> RunSpec:
    """The run without the parts whose values run.toml's own bounds refuse, because resolved.json must be readable.

    A learning rate of 0 is legal in prime-rl, and does not concern a launch.
    """
    try:
        from_json(to_json(run))
    except ValidationError as error:
        odd = {name for fault in error.errors() for name in fault["loc"][:2]}
        usual = (*fields(RunSpec), *fields(prime_rl_parts.PrimeRl))
        odd_parts = {part.name: part.default for part in usual if part.name in odd - {"prime_rl"}}
        return replace_parts(run, **odd_parts)
    return run


def settings(before: RunSpec, run: RunSpec, root: str, resume_step: int) -> tuple[CopiedSetting, ...]:
    """The differences of the copy from the file. `before` is the run of the file, `run` the result of `prepare_run`."""
    return (
        CopiedSetting(OURS, None, "prime-rl refuses a table that it does not know"),
        *_set_folders(before, run),
        *_forbid_cleaning(before, run, root),
        *_set_checkpoints(before, run),
        *_set_resume(before, run, resume_step),
    )


def _set_folders(before: RunSpec, run: RunSpec) -> Iterator[CopiedSetting]:
    parts = prime_rl_of(run)
    why = "the folder must not depend on where the command is repeated"
    yield CopiedSetting("output_dir", parts.launch.output_dir, why)
    if parts.launch.run_name is not None:
        given = prime_rl_of(before).launch.run_name
        why = "without a name each launch would create a new one, and a resume would look into an empty folder"
        yield CopiedSetting("run.name", parts.launch.run_name, why, is_notable=given != parts.launch.run_name)
    if parts.saving is not None and parts.saving.output_dir is not None:
        why = "the same folder wherever the command is repeated"
        yield CopiedSetting("ckpt.output_dir", parts.saving.output_dir, why)


def _forbid_cleaning(before: RunSpec, run: RunSpec, root: str) -> Iterator[CopiedSetting]:
    """Cleaning deletes the files that a run resumes from. In 2026-01 `rl` cleans by default."""
    cleans = bool(prime_rl_of(before).launch.clean)
    why = "a supervised run may start many times, and no start may delete its files"
    if features_of(run).cleans_by_default:
        if root == "rl":
            yield CopiedSetting("clean", False, why)
    elif cleans:
        yield CopiedSetting("clean" if features_of(run).names_runs else "clean_output_dir", False, why, is_notable=True)


def _set_checkpoints(before: RunSpec, run: RunSpec) -> Iterator[CopiedSetting]:
    if before.checkpoint.interval_steps is None:
        why = "without an interval there is no checkpoint to resume from before the end"
        yield CopiedSetting("ckpt.interval", run.checkpoint.interval_steps, why, is_notable=True)
    if _keeps_all(before):
        why = "the file does not set how many to keep, and all of them would fill the disk"
        yield CopiedSetting("ckpt.keep_last", _KEPT, why, is_notable=True)


def _keeps_all(before: RunSpec) -> bool:
    """Whether an interval that the file does not set would keep every checkpoint."""
    parts = prime_rl_of(before)
    keeps_last = parts.saving is not None and parts.saving.keep_last is not None
    return before.checkpoint.interval_steps is None and not keeps_last and not before.checkpoint.keep_every_steps


def _set_resume(before: RunSpec, run: RunSpec, resume_step: int) -> Iterator[CopiedSetting]:
    """A step by its number, because "the latest" takes the highest folder, complete or not (prime-rl#1825)."""
    parts = prime_rl_of(before)
    if resume_step == 0:
        return
    why = "the newest complete checkpoint; prime-rl itself would take the newest folder, complete or not"
    if not features_of(run).names_runs:
        yield CopiedSetting("ckpt.resume_step", resume_step, why)
        return
    if parts.resume is not None and parts.resume.dir is not None:
        yield CopiedSetting("resume.dir", None, "the run has its own checkpoints now")
    yield CopiedSetting("resume.step", resume_step, why)


def choose_interval(max_steps: int) -> int:
    """Steps between checkpoints for a file that sets none."""
    return _USUAL_INTERVAL if max_steps >= ENDLESS_STEPS else max(1, max_steps // 10)


def write_settings(text: str, changes: tuple[CopiedSetting, ...]) -> str:
    """The file with the settings, with its comments and layout. Raises UserError if a key cannot be set."""
    for change in changes:
        try:
            text = edited(text, {change.key: change.value})
        except EditRefused as error:
            raise UserError(
                what=f"{change.key} cannot be set in a copy of it: {error}",
                where="config",
                why=change.reason,
                fix=f"write {change.key} on a line of its own, under its table"
                if change.value is not None
                else f"write [{change.key}] as a table of its own",
            ) from None
    return text
