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
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prime_train.live_plans import ScriptPlans

FOLDER_ENV = "PRIME_TRAIN_LIVE"  # the folder of this attempt; unset = there is no supervisor
STOP = "stop"  # a file: the supervisor asks for a save and the end
STOP_AT = "stop_at"  # a file: the step after which all ranks of this machine stop
PLANS_ENV = "PRIME_TRAIN_PLANS"  # the folder of the plans of this run
STEP_ENV = "PRIME_TRAIN_RESUME_STEP"  # the step of the checkpoint that this attempt resumes from
APPLIED_ENV = "PRIME_TRAIN_APPLIED"  # a file: the steps at which earlier attempts put them in force
SAVE = "save"  # a file: the supervisor asks for a checkpoint; rank 0 removes it
SAVE_AT = "save_at"  # a file: the step after which all ranks of this machine save
RESUME = "resume"  # a file: the path of the checkpoint to resume from
MANIFEST = "COMPLETE.json"

_BETWEEN_LINES_S = 0.25  # a loop of a thousand steps per second writes four lines
_BETWEEN_LOOKS_S = 0.2
_LONGEST_NAME, _LONGEST_PATH = 200, 4096
# How far a rank may be ahead of rank 0: by a step, and by what it has given to its device without waiting.
_AHEAD_STEPS, _AHEAD_S = 2, 2.0

_rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"  # torchrun and accelerate, srun
_world = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1"
_ask_all: Callable[..., bool] | None = None  # how the ranks agree, where another module knows it


class _Lines:
    """The file of this process. Only the newest step waits in memory, at most a quarter of a second."""

    def __init__(self, folder: Path) -> None:
        self.stop, self.stop_at, self.resume = folder / STOP, folder / STOP_AT, folder / RESUME
        self.save, self.save_at = folder / SAVE, folder / SAVE_AT
        self.planned_at = self.saved_at = -1  # the step that this rank chose for the latest save, and its latest save
        self.listens_to_saves = False
        self.newest = 0
        self._first: tuple[float, int] | None = None  # monotonic seconds, step
        self.looked_s = -math.inf
        self.listens = False
        self.stops = False
        self._written_s = -math.inf
        self._waiting: tuple[float, int, Any, Any] | None = None
        self._path = folder / f"rank{_rank}-{os.getpid()}.jsonl"
        self._file = -1
        self._failed = False
        self._cut = False

    def step(self, number: int, loss: Any, tokens: Any) -> None:
        self.newest = number
        now_s = time.monotonic()
        if self._first is None:
            self._first = now_s, number
        self._waiting = (time.time(), number, loss, tokens)
        if now_s - self._written_s >= _BETWEEN_LINES_S:
            self._written_s = now_s
            self.flush()

    def choose_last_step(self) -> int:
        """A step that no rank has reached yet, by the mean step time of this one."""
        if self._first is None:
            return self.newest + _AHEAD_STEPS
        took_s, steps = time.monotonic() - self._first[0], self.newest - self._first[1]
        return self.newest + max(_AHEAD_STEPS, math.ceil(_AHEAD_S * steps / max(took_s, _AHEAD_S)))

    def flush(self) -> None:
        """Write the step that waits."""
        if self._waiting is None:
            return
        at_s, number, loss, tokens = self._waiting
        self._waiting = None
        line: dict[str, Any] = {"t": round(at_s, 3), "step": number}
        if loss is not None:
            line["loss"] = _number(loss)  # a tensor on a GPU is waited for here, four times a second at most
        if tokens is not None:
            line["tokens"] = _number(tokens)
        self._append(line)

    def write(self, **values: Any) -> None:
        """Write a line of another kind, after the step before it."""
        self.flush()
        self._append({"t": round(time.time(), 3), "step": self.newest, **values})

    def _append(self, line: dict[str, Any]) -> None:
        if self._failed:
            return
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            data = (("\n" if self._cut else "") + json.dumps(line) + "\n").encode()
            sent = 0
            while sent < len(data):  # a network disk may take a part
                sent += os.write(self._file, data[sent:])
                self._cut = sent < len(data)  # the next line begins anew if the disk becomes full here
        except FileNotFoundError:  # the folder is gone, and with it everybody who reads it
            self._failed = True
        except OSError:  # a full disk may have room again later
            pass


def _number(value: Any) -> Any:
    """A plain number; None where there is none. JSON has no NaN, so that is a text."""
    try:
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # a tensor with several values raises RuntimeError
        return None
    if not math.isfinite(number):
        return str(number)
    return int(number) if number.is_integer() and isinstance(value, int) else number


def _open_lines() -> _Lines | None:
    folder = os.environ.get(FOLDER_ENV, "")
    return _Lines(Path(folder)) if folder and Path(folder).is_dir() else None


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
    saved = Path(path).absolute()
    root = saved if saved.is_dir() else saved.parent
    files = _list_files(saved) if saved.is_dir() else [saved]
    sizes = {}
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            sizes[str(file.relative_to(root))] = {"bytes": os.fstat(opened.fileno()).st_size}
    for folder in {saved.parent, *(file.parent for file in files)}:  # a power cut takes names, too
        _sync(folder)
    manifest = saved / MANIFEST if saved.is_dir() else saved.with_name(f"{saved.name}.{MANIFEST}")
    # Last of all, because it stands for everything else being on the disk.
    _write_whole(manifest, json.dumps({"version": 1, "step": int(number), "files": sizes}, indent=1))
    if _lines is not None:
        _lines.write(checkpoint=str(saved), of_step=int(number))


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


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
    elif _spans_machines():
        lines.stops = _agree(lines.stop.exists())
    elif _world == "1":
        now_s = time.monotonic()
        if now_s - lines.looked_s >= _BETWEEN_LOOKS_S:
            lines.looked_s = now_s
            lines.stops = lines.stop.exists()
    else:
        lines.stops = _stops_with_others(lines)
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
        saves = _take(lines.save)
    elif _spans_machines():
        saves = _agree(_take(lines.save))
    else:
        saves = _saves_with_others(lines)
    if saves:
        lines.flush()
    return saves


def _take(request: Path) -> bool:
    """Whether there is a request. Its file is removed, so that it is met once."""
    try:
        request.unlink()
    except OSError:
        return False
    return True


def _saves_with_others(lines: _Lines) -> bool:
    """Rank 0 writes down a step that no rank has reached; each rank saves after it, once."""
    # The step of the request before must lie so far back that every rank has passed it.
    ahead_steps = lines.choose_last_step() - lines.newest
    if _rank == "0" and lines.newest > lines.planned_at + ahead_steps and lines.save.exists():
        try:
            _write_whole(lines.save_at, str(lines.newest + ahead_steps))
        except OSError:
            return False  # the next step tries again
        lines.planned_at = lines.newest + ahead_steps
        _take(lines.save)
    try:
        with lines.save_at.open(encoding="utf-8") as file:
            at_step = int(file.read(20))
    except (OSError, ValueError):
        return False
    if at_step <= lines.saved_at or lines.newest < at_step:
        return False
    lines.saved_at = at_step
    return True


def _stops_with_others(lines: _Lines) -> bool:
    """Rank 0 writes down a step that no rank has reached; each rank stops after it."""
    if _rank == "0" and lines.stop.exists() and not lines.stop_at.exists():
        try:
            _write_whole(lines.stop_at, str(lines.choose_last_step()))
        except OSError:
            return False  # the next step tries again; one rank alone never stops, because the others would wait for it
    try:
        with lines.stop_at.open(encoding="utf-8") as file:
            return lines.newest >= int(file.read(20))
    except (OSError, ValueError):
        return False


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
    version = _least(_settings.find_newest(done))
    for each, first in _settings.go_to(version, done):
        if _rank == "0":
            _lines.write(settings=each, first=first)
    return dict(_settings.values)


def _read_resume_step() -> int:
    """The step of the checkpoint that this attempt resumes from; 0 where none is known."""
    found = os.environ.get(STEP_ENV, "")
    return int(found) if found.isascii() and found.isdigit() else 0


def _least(version: int) -> int:
    """The least version of all ranks. A collective, where there are several and torch.distributed connects them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return version if _world == "1" else 0
    on_gpu = torch.distributed.get_backend() == "nccl"
    found = torch.tensor([version], dtype=torch.int64, device="cuda" if on_gpu else "cpu")
    torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MIN)
    return int(found.item())


def _spans_machines() -> bool:
    here = os.environ.get("LOCAL_WORLD_SIZE")
    return here is not None and here != _world


def _agree(wants: bool) -> bool:
    """Whether any rank wants it. A collective, so all ranks call it at the same step."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return wants
    on_gpu = torch.distributed.get_backend() == "nccl"
    flag = torch.tensor([wants], dtype=torch.int32, device="cuda" if on_gpu else "cpu")
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
