"""Gathers the facts that are asked for, each by its own probe. A probe that fails leaves a reason, not a guess."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prime_train.facts import disk, files, gpus, host, packages
from prime_train.facts.facts import Facts, NotKnown
from prime_train.spec import RunSpec

Probe = Callable[[RunSpec, Path], Any]

PROBES: dict[str, Probe] = {
    "open_files": lambda _run, _dir: host.open_files(),
    "cpu": lambda _run, _dir: host.cpu(),
    "ram": lambda _run, _dir: host.ram(),
    "save_dir": lambda _run, run_dir: disk.save_dir(run_dir),
    "gpus": lambda _run, _dir: gpus.gpus(),
    "model_folder": lambda run, _dir: files.model_folder(run.model.path),
    "tokenizer_folder": lambda run, _dir: files.tokenizer_folder(run.tokenizer.path),
    "source_files": lambda run, _dir: files.source_files(run.data.sources),
    "packages": lambda _run, _dir: packages.packages(),
}


def gather(run: RunSpec, run_dir: Path, needs: Iterable[str]) -> Facts:
    """The facts named in `needs`. `run_dir` is where the run will be; it need not exist, and is not made."""
    return Facts(**{need: _probe(need, run, run_dir) for need in needs})


def _probe(need: str, run: RunSpec, run_dir: Path) -> Any:
    try:
        return PROBES[need](run, run_dir)
    except OSError as error:
        return NotKnown(f"{need} could not be read: {error.strerror or error}")
