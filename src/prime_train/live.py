"""What a training script reports to its supervisor, and what it asks. Standard library only, Python 3.9 or later.

    from prime_train import live

    for step in range(first, steps):
        loss = train_one_step()
        live.step(step + 1, loss=loss)
        if live.should_stop():
            save()
            break

Without a supervisor each call is one branch, so the lines can stay in a script for good. Nothing here raises because of
the supervisor, its folder or a full disk, because a training that works must not end for a line about it.

A rank appends JSON lines to a file of its own in the folder `PRIME_TRAIN_LIVE`. The lines survive the death of the
process, which is when they are needed.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prime_train.live_checkpoint import seal
from prime_train.live_plans import ScriptPlans
from prime_train.live_ranks import agree, least, saves_with_others, spans_machines, stops_with_others, take
from prime_train.live_report import RankReport

FOLDER_ENV = "PRIME_TRAIN_LIVE"  # the folder of this attempt; unset = there is no supervisor
PLANS_ENV = "PRIME_TRAIN_PLANS"  # the folder of the plans of this run
STEP_ENV = "PRIME_TRAIN_RESUME_STEP"  # the step of the checkpoint that this attempt resumes from
APPLIED_ENV = "PRIME_TRAIN_APPLIED"  # a file: the steps at which earlier attempts put them in force

_BETWEEN_LOOKS_S = 0.2
_LONGEST_NAME, _LONGEST_PATH = 200, 4096

_rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"  # torchrun and accelerate, srun
_world = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1"
_ask_all: Callable[..., bool] | None = None  # how the ranks agree, where another module knows it


def _open_lines() -> RankReport | None:
    folder = os.environ.get(FOLDER_ENV, "")
    return RankReport(Path(folder), _rank) if folder and Path(folder).is_dir() else None


_lines = _open_lines()


def _forget_parent() -> None:
    """A forked child, such as a loader's worker, has a file of its own: two processes never share a step that waits."""
    global _lines
    _lines = _open_lines()


def flush() -> None:
    """Write the step that waits. A process that ends by itself does it."""
    if _lines is not None:
        _lines.flush()


if _lines is not None:
    atexit.register(flush)
    os.register_at_fork(after_in_child=_forget_parent)


def set_rank(rank: int, world: int, agree: Callable[..., bool]) -> None:
    """For launchers that set no RANK. `agree(step, asked_to=...)`: whether all ranks stop at this step."""
    global _rank, _world, _ask_all, _lines
    _rank, _world, _ask_all = str(rank), str(world), agree
    _lines = _open_lines()


def is_supervised() -> bool:
    """Whether a supervisor reads what this process reports."""
    return _lines is not None


def step(number: int, loss: Any = None, tokens: Any = None) -> None:
    """Report that `number` optimizer steps are done, counted over all attempts.

    `loss`: the mean of the step, a number or a tensor with one value. `tokens`: of the step, over all ranks.
    """
    if _lines is not None:
        _lines.step(int(number), loss, tokens)


def total(number: int) -> None:
    """Report how many optimizer steps the training will have done at its end, over all attempts."""
    if _lines is not None:
        _lines.write(total=int(number))


def finish() -> None:
    """Report that the training has reached its end. Exit code 0 alone is also that of a script that was stopped."""
    if _lines is not None:
        _lines.write(finished=True)


def phase(name: str, limit_s: float | None = None) -> None:
    """Report that something begins that takes longer than a step, such as "evaluate". The next step ends it.

    `limit_s`: how long it may take; a longer silence is a hang. None: as long as the config allows any phase.
    """
    if _lines is not None:
        limit = {} if limit_s is None else {"limit_s": float(limit_s)}
        _lines.write(phase=str(name)[:_LONGEST_NAME], **limit)


def note(text: str) -> None:
    """Report one line for the reader of the run."""
    if _lines is not None:
        _lines.write(note=str(text)[:_LONGEST_NAME])


def checkpoint(path: str | os.PathLike[str], number: int) -> None:
    """Make a checkpoint complete: sync its files, write what they are, and report it.

    `path`: a folder or a file that is written, by all ranks. Call it on one rank. Without a supervisor it does the
    same, because the checkpoint is what a supervised run resumes from later. Raises OSError.
    """
    saved = seal(Path(path), int(number))
    if _lines is not None:
        _lines.write(checkpoint=str(saved), of_step=int(number))


def resume_path() -> str | None:
    """The newest complete checkpoint, which the script loads before its first step; None = it begins at step 0."""
    if _lines is None:
        return None
    try:
        with _lines.resume.open(encoding="utf-8") as file:
            return file.read(_LONGEST_PATH).strip() or None
    except (OSError, ValueError):
        return None


def should_stop() -> bool:
    """Whether to save and end now. All ranks get True at the same step. Call it once after each `step`.

    The ranks of one machine agree without a collective, those of several machines through torch.distributed.
    """
    lines = _lines
    if lines is None:
        return False
    if not lines.listens:  # the supervisor then asks for a stop by the file, and sends no signal
        lines.listens = True
        lines.write(listens=True)
    if lines.stops:
        return True
    if _ask_all is not None:
        lines.stops = _ask_all(lines.newest, asked_to=lines.stop.exists())
    elif spans_machines(_world):
        lines.stops = agree(lines.stop.exists())
    elif _world == "1":
        now_s = time.monotonic()
        if now_s - lines.looked_s >= _BETWEEN_LOOKS_S:
            lines.looked_s = now_s
            lines.stops = lines.stop.exists()
    else:
        lines.stops = stops_with_others(lines)
    if lines.stops:
        lines.flush()
    return lines.stops


def should_save() -> bool:
    """Whether to save a checkpoint now and go on. All ranks get True at the same step. Call it once after each `step`.

    The ranks agree as those of `should_stop` do. Those of JAX do not: there each call returns False.
    """
    lines = _lines
    if lines is None or (_ask_all is not None and _world != "1"):
        return False
    if not lines.listens_to_saves:  # without this line the supervisor refuses to ask
        lines.listens_to_saves = True
        lines.write(saves=True)
    if _world == "1":
        saves = take(lines.save)
    elif spans_machines(_world):
        saves = agree(take(lines.save))
    else:
        saves = saves_with_others(lines)
    if saves:
        lines.flush()
    return saves


_settings: ScriptPlans | None = None


def settings(done: int | None = None) -> dict[str, Any]:
    """The values that `prime-train set` has changed, by the names in [[command.settings]]; {} without a change.

    `done`: optimizer steps that are done, by default those of the last `step`, and before the first one those of the
    checkpoint that the attempt resumes from. Call it once before each step, on every rank: where torch.distributed is
    initialised all ranks get the same values, by one sum of a number.
    """
    global _settings
    if _lines is None or not os.environ.get(PLANS_ENV):
        return {}
    if _settings is None:
        _settings = ScriptPlans(os.environ[PLANS_ENV], os.environ.get(APPLIED_ENV, ""), note)
    if done is None:
        done = _lines.newest or _read_resume_step()
    version = least(_settings.find_newest(done), _world)
    for each, first in _settings.go_to(version, done):
        if _rank == "0":
            _lines.write(settings=each, first=first)
    return dict(_settings.values)


def _read_resume_step() -> int:
    """The step of the checkpoint that this attempt resumes from; 0 where none is known."""
    found = os.environ.get(STEP_ENV, "")
    return int(found) if found.isascii() and found.isdigit() else 0
