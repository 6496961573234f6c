"""What a backend is: it plans the processes of an attempt, and knows where its checkpoints lie. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from prime_train.backends.launch import Launch
from prime_train.checkpoints.layout import Checkpoint
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec


class Backend(Protocol):
    """One program that trains or serves, as the supervisor sees it."""

    @property
    def name(self) -> str: ...

    @property
    def stops_by_file(self) -> bool:
        """It looks for RunDir.stop_request, saves and ends; else it is told by SIGTERM and may not save."""

    @property
    def reports(self) -> bool:
        """It writes events from its start on, so that silence means something before its first step too."""

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        """Folders in which it writes logs of its own, beside those that its launches name."""

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        """What an attempt starts, in order. Services come first, and what follows waits for them to answer."""

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[Checkpoint]:
        """Every checkpoint folder, newest first, each judged complete or not."""
