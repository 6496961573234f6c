"""Looks at the directory that a run will write to: who holds it, what an earlier run left there. Changes nothing."""

from __future__ import annotations

import json
import re
import socket
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.checkpoints.in_use import start_ticks
from prime_train.facts.local import RunFolder, StepFolder
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec

_STEP = re.compile(r"step_(\d+)\Z")
# What prime-rl passes over in a run directory. Source: prime-rl 2026-08, entrypoints/rl.py, validate_run_dir.
_NO_LEFTOVER = re.compile(r"configs|rl\.sbatch|sft\.sbatch|job_.*\.log")
_METADATA = (".metadata", "*/.metadata", "*/*/.metadata")  # written last by torch.distributed.checkpoint
_TIMED_STEPS = 200
_LINE_BYTES = 1024  # a line of metrics.jsonl has a few hundred


def run_folder(run: RunSpec, run_dir: Path) -> RunFolder:
    """What stands at `run_dir`, which need not exist. Raises OSError where it may not be read."""
    path = run_dir.absolute()
    if run.is_native:
        found = [StepFolder(item.step, item.path, item.problem) for item in layout.scan(RunDir(path).checkpoints)]
        times = _measured(RunDir(path).metrics)
    else:
        found = list(_of_prime_rl(run, path))
        times = _between(found)
    return RunFolder(
        path,
        _holder(RunDir(path).lock),
        _leftovers(run, path),
        tuple(found),
        _target(run),
        statistics.median(times) if times else None,
        len(times),
    )


def _holder(lock: Path) -> str:
    """The live process that the text of a lock names. One on another machine is believed."""
    try:
        identity, host = lock.read_text(encoding="utf-8").split()
        pid, ticks = (int(number) for number in identity.split(":"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ""
    if host == socket.gethostname() and start_ticks(pid) != ticks:
        return ""
    return f"process {pid} on {host}"


def _leftovers(run: RunSpec, path: Path) -> tuple[str, ...]:
    """What somebody else left. A run of prime-rl without a name gets a directory that nobody has."""
    names = sorted(item.name for item in path.iterdir()) if path.is_dir() else []
    if run.is_native:
        own = RunDir(path)
        is_ours = own.events.name in names or own.resolved.name in names
        return () if is_ours else tuple(name for name in names if name != own.lock.name)
    launch = run.launch
    if launch is None or launch.generation != "2026-08" or not (launch.run_name or launch.run_dir):
        return ()
    return tuple(name for name in names if not _NO_LEFTOVER.fullmatch(name))


# --- checkpoints of prime-rl ---------------------------------------------------------------------


def _of_prime_rl(run: RunSpec, run_dir: Path) -> Iterator[StepFolder]:
    """Every step folder of a run, newest first."""
    elsewhere = run.saving.output_dir if run.saving is not None else None
    root = Path(elsewhere).absolute() if elsewhere else run_dir
    folders = [folder for around in (root / "checkpoints", root) if around.is_dir() for folder in around.iterdir()]
    steps = {int(match[1]): folder for folder in reversed(folders) if (match := _STEP.search(folder.name))}
    for step in sorted(steps, reverse=True):
        if steps[step].is_dir():
            yield StepFolder(step, steps[step], _problem(run, steps[step]))


def _target(run: RunSpec) -> StepFolder | None:
    if run.resume is None or run.resume.dir is None:
        return None
    folder = Path(run.resume.dir).absolute()
    match = _STEP.search(folder.name)
    step = int(match[1]) if match else -1
    if not folder.is_dir():
        return StepFolder(step, folder, "there is no such folder")
    if match is None:
        return StepFolder(step, folder, "it is not called step_N")
    return StepFolder(step, folder, _problem(run, folder))


def _problem(run: RunSpec, folder: Path) -> str:
    """What a step folder lacks. Of the orchestrator's part only the layout of 2026-08 is known."""
    if not any(True for pattern in _METADATA for _ in folder.glob(pattern)):
        return "no .metadata: the trainer's save did not finish"
    is_known = run.launch is not None and run.launch.generation == "2026-08"
    if run.rollout is not None and is_known and not (folder / "orchestrator" / "progress.pt").is_file():
        return "no orchestrator/progress.pt: the orchestrator's save did not finish"
    return ""


# --- how long a step took ------------------------------------------------------------------------


def _measured(metrics: Path) -> list[float]:
    """Seconds of the last steps, as the trainer wrote them."""
    try:
        with open(metrics, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TIMED_STEPS * _LINE_BYTES))
            lines = file.read().split(b"\n")[-_TIMED_STEPS - 1 :]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [seconds for line in lines if (seconds := _step_s(line)) is not None]


def _step_s(line: bytes) -> float | None:
    """The time of a step; None where the line is not a whole one."""
    try:
        seconds = json.loads(line)["step_s"]
    except (ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _between(checkpoints: Sequence[StepFolder]) -> list[float]:
    """Seconds of a step between each two checkpoints, by when their folders were last written."""
    written = [(item.step, item.path.stat().st_mtime) for item in reversed(checkpoints) if not item.problem]
    return [(later - before) / (to - since) for (since, before), (to, later) in pairwise(written) if later > before]
