"""Makes the run directories that are damaged, each once, and the reference that every finish is compared with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.rundir import RunDir
from tests.fuzz.content import read_hash
from tests.fuzz.stage import Stage, kill_tree, wait

NAMES = ("stopped", "killed", "finished", "packed")
COMMAND = ("run", "run.toml", "--no-validate", "--resume", "auto")
KEEP_ALL = "keep_last = 100\n"
_LIMIT_S = 600.0  # on a machine with more to do
_SLOWLY_S = "0.05"


@dataclass(frozen=True, slots=True)
class Reference:
    """What an undisturbed run leaves: the loss of each step, and the hash of each file of the last checkpoint."""

    losses: Mapping[int, float]
    files: Mapping[str, str]

    @property
    def last_step(self) -> int:
        return max(self.losses)


def losses(run_dir: RunDir) -> dict[int, float]:
    """The loss of each step in metrics.jsonl; lines that cannot be read are left out."""
    found = {}
    for line in run_dir.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            raw = json.loads(line)
            found[int(raw["step"])] = raw["loss"]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return found


def hashes(folder: Path, *, torch: bool) -> dict[str, str]:
    """The SHA-256 of each file of a checkpoint, without its manifest; of its content where the real loop saved it."""
    if torch:
        return {"content": read_hash(folder)}
    files = (path for path in folder.iterdir() if path.name != "COMPLETE.json" and path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def make(stage: Stage) -> Reference:
    """Make the templates that are missing. Returns the reference."""
    steps, interval_steps = (60, 5) if stage.torch else (20, 4)
    makers: dict[str, Callable[[], None]] = {
        "finished": lambda: _finish(stage),
        "stopped": lambda: _interrupt(stage, signal.SIGTERM),
        "killed": lambda: _interrupt(stage, signal.SIGKILL),
        "packed": lambda: _pack(stage),
    }
    for name, begin in makers.items():
        if (stage.templates / name).exists():
            continue
        stage.write_config(steps)
        config = stage.case / "run.toml"
        text = config.read_text(encoding="utf-8")
        config.write_text(
            text.replace("interval_steps = 4\n", f"interval_steps = {interval_steps}\n{KEEP_ALL}"), encoding="utf-8"
        )
        begin()
        keep(stage, name)
    return read_reference(stage, "finished")


def keep(stage: Stage, name: str) -> None:
    """Keep the case as a template, with a healthy run beside the one that is damaged."""
    neighbour = RunDir(stage.case / "runs" / "neighbour")
    shutil.copytree(stage.run_dir.path, neighbour.path, symlinks=True)
    for path in (neighbour.resolved, *neighbour.events.iterdir()):
        path.write_text(path.read_text(encoding="utf-8").replace("small", "neighbour"), encoding="utf-8")
    shutil.copytree(stage.case, stage.templates / name, symlinks=True)


def read_reference(stage: Stage, name: str) -> Reference:
    run_dir = RunDir(stage.templates / name / "runs" / "small")
    found = losses(run_dir)
    return Reference(found, hashes(run_dir.checkpoint(max(found)), torch=stage.torch))


def _finish(stage: Stage) -> None:
    ended = stage.run(*COMMAND, limit_s=_LIMIT_S)
    assert ended.code == 0, ended.text


def _interrupt(stage: Stage, number: signal.Signals) -> None:
    """Signal the supervisor when two checkpoints are complete and the next one is not."""
    pid = stage.start(*COMMAND, FUZZ_STEP_S=_SLOWLY_S)
    give_up_s = time.monotonic() + _LIMIT_S
    while len(_steps(stage.run_dir)) < 2:
        assert time.monotonic() < give_up_s, "no checkpoint"
        time.sleep(0.005)
    if number is signal.SIGKILL:
        kill_tree(pid)
        return
    os.kill(pid, number)
    assert wait(pid, _LIMIT_S) == 75


def _pack(stage: Stage) -> None:
    _interrupt(stage, signal.SIGTERM)
    ended = stage.run("ckpt", "compress", "small")
    assert ended.code == 0, ended.text


def _steps(run_dir: RunDir) -> list[Path]:
    return list(run_dir.checkpoints.glob("step_*/COMPLETE.json"))
