"""Knows every file name inside a run directory. Creates nothing by itself; standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run. `path` is absolute; the methods name files, whether they exist or not."""

    path: Path

    @property
    def config(self) -> Path:
        """The config exactly as the user wrote it."""
        return self.path / "config.toml"

    @property
    def resolved(self) -> Path:
        """The RunSpec as JSON: every default filled in, every path absolute. The trainer reads this."""
        return self.path / "resolved.json"

    @property
    def facts(self) -> Path:
        return self.path / "facts.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def events(self) -> Path:
        """One append-only JSONL file per writer."""
        return self.path / "events"

    @property
    def metrics(self) -> Path:
        """One JSON line per optimizer step, from rank 0 of the trainer."""
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.md"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def lock(self) -> Path:
        """Held with flock by the one live supervisor; its text names the holder."""
        return self.path / "lock"

    @property
    def watches(self) -> Path:
        """What the watches' own programs and failures say, one log each."""
        return self.path / "watches"

    @property
    def wandb(self) -> Path:
        """The mirror at W&B: its log, its lock, how far it got."""
        return self.path / "wandb"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        """The Hugging Face folder written at the end when checkpoint.final = "hf"."""
        return self.path / "final"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step}"

    def attempt(self, attempt: int) -> Path:
        return self.path / "attempts" / f"{attempt:03d}"

    def launch(self, attempt: int, role: str) -> Path:
        return self.attempt(attempt) / f"launch-{role}.json"

    def log(self, attempt: int, role: str) -> Path:
        return self.attempt(attempt) / f"{role}.log"

    def evidence(self, attempt: int) -> Path:
        """What was found out about an attempt before it was ended."""
        return self.attempt(attempt) / "evidence"

    def stop_request(self, attempt: int) -> Path:
        """Its existence asks the trainer to checkpoint and end at the next step boundary.

        A file reaches every rank through any launcher; a signal to torchrun does not: its agent
        kills the workers 30 s later whether or not they have saved.
        """
        return self.attempt(attempt) / "stop_requested"

    def relative(self, path: Path) -> str:
        """`path` as a person would write it: relative to the working directory where that is shorter."""
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the whole of the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
