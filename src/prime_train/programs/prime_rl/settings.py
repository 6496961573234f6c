"""What is set in a copy of a prime-rl file so that its run can be supervised, a reason beside each. Pure.

The user's own file is never written to. What it says stays, but for what a supervised run cannot have: a random name,
a clean start, no checkpoint to come back to. Source of the keys: the tables of registry/prime_rl; of what the launcher
does with them: prime-rl, entrypoints/rl.py and utils/pathing.py of each generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prime_train.config.prime_rl.features import features_of
from prime_train.core.errors import UserError
from prime_train.spec import ENDLESS_STEPS, RunSpec, from_json, prime_rl_parts, to_json
from prime_train.toml.edit import EditRefused, edited

OURS = "prime_train"  # prime-rl refuses a table that it does not know
_OUTPUT_DIR = "outputs"  # prime-rl's own default, in every generation
_USUAL_INTERVAL = 50
_KEPT = 2  # checkpoints, where the file has nothing to say of them: the newest, and one before it


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the copy. `value` None takes it out. `told`: the user should hear of it."""

    key: str
    value: Any
    reason: str
    told: bool = False


def named(run: RunSpec, name: str, cwd: Path) -> RunSpec:
    """The run with its name, its folder and its checkpoints fixed, as the copy will say them.

    Relative folders are those of `cwd`, where the launcher is started.
    """
    launch = run.launch or prime_rl_parts.Launch()
    said = Path(launch.output_dir or _OUTPUT_DIR).expanduser()
    is_shared = launch.output_dir in (None, _OUTPUT_DIR)  # the default is a folder for every run there is
    output_dir = cwd / said if features_of(run).names_runs or not is_shared else cwd / said / name
    saving = run.saving
    elsewhere_dir = saving.output_dir if saving is not None else None
    if saving is not None and elsewhere_dir is not None:
        saving = saving._replace(output_dir=str(cwd / Path(elsewhere_dir).expanduser()))
    interval = run.checkpoint.interval_steps or _tenth(run.run.max_steps)
    return replace(
        _storable(run),
        run=replace(run.run, name=name),
        checkpoint=replace(run.checkpoint, interval_steps=interval),
        launch=launch._replace(output_dir=str(output_dir), run_name=name if features_of(run).names_runs else None),
        saving=(saving or prime_rl_parts.Saving())._replace(keep_last=_KEPT) if _keeps_all(run) else saving,
    )


def _storable(run: RunSpec) -> RunSpec:
    """The run without the parts whose values run.toml's own bounds refuse: what is kept of it must be read back.

    A learning rate of 0 is legal in prime-rl, and no part of a launch.
    """
    try:
        from_json(to_json(run))
    except ValidationError as error:
        odd = {str(fault["loc"][0]) for fault in error.errors()}
        without: dict[str, Any] = {part.name: part.default for part in fields(run) if part.name in odd}
        return replace(run, **without)
    return run


def settings(before: RunSpec, run: RunSpec, root: str, resume_step: int) -> tuple[Setting, ...]:
    """What the copy says otherwise than the file. `before` is the run as the file has it, `run` as `named` left it."""
    assert run.launch is not None
    return (
        Setting(OURS, None, "prime-rl refuses a table that it does not know"),
        *_where(before, run),
        *_never_clean(before, run, root),
        *_checkpoints(before, run),
        *_resume(before, run, resume_step),
    )


def _where(before: RunSpec, run: RunSpec) -> Iterator[Setting]:
    assert run.launch is not None
    yield Setting("output_dir", run.launch.output_dir, "the same folder from wherever the command is given again")
    if run.launch.run_name is not None:
        said = before.launch.run_name if before.launch is not None else None
        why = "without a name each launch would make one up, and a resume would look into an empty folder"
        yield Setting("run.name", run.launch.run_name, why, told=said != run.launch.run_name)
    if run.saving is not None and run.saving.output_dir is not None:
        yield Setting("ckpt.output_dir", run.saving.output_dir, "the same folder from wherever the command is given")


def _never_clean(before: RunSpec, run: RunSpec, root: str) -> Iterator[Setting]:
    """Cleaning deletes what a run is to come back to. In 2026-01 `rl` cleans unless it is told not to."""
    wanted = bool(before.launch is not None and before.launch.clean)
    why = "a supervised run starts again and again, and deletes nothing when it does"
    if features_of(run).cleans_by_default:
        if root == "rl":
            yield Setting("clean", False, why, told=False)
    elif wanted:
        yield Setting("clean" if features_of(run).names_runs else "clean_output_dir", False, why, told=True)


def _checkpoints(before: RunSpec, run: RunSpec) -> Iterator[Setting]:
    if before.checkpoint.interval_steps is None:
        why = "without an interval there is nothing to come back to before the end"
        yield Setting("ckpt.interval", run.checkpoint.interval_steps, why, told=True)
    if _keeps_all(before):
        why = "the file does not say how many to keep, and all of them would fill the disk"
        yield Setting("ckpt.keep_last", _KEPT, why, told=True)


def _keeps_all(before: RunSpec) -> bool:
    """Whether an interval that the file has not asked for would keep every checkpoint."""
    keeps_last = before.saving is not None and before.saving.keep_last is not None
    return before.checkpoint.interval_steps is None and not keeps_last and not before.checkpoint.keep_every_steps


def _resume(before: RunSpec, run: RunSpec, resume_step: int) -> Iterator[Setting]:
    """A step by its number: "the latest" takes the highest folder there is, whole or not (prime-rl#1825)."""
    if resume_step == 0:
        return
    why = "the newest complete checkpoint; prime-rl itself would take the newest folder, complete or not"
    if not features_of(run).names_runs:
        yield Setting("ckpt.resume_step", resume_step, why)
        return
    if before.resume is not None and before.resume.dir is not None:
        yield Setting("resume.dir", None, "the run has checkpoints of its own by now")
    yield Setting("resume.step", resume_step, why)


def _tenth(max_steps: int) -> int:
    return _USUAL_INTERVAL if max_steps >= ENDLESS_STEPS else max(1, max_steps // 10)


def written(text: str, changes: tuple[Setting, ...]) -> str:
    """The file with the settings, its comments and layout kept. Raises UserError where that cannot be done."""
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
