"""Reads and rewrites the file in which a trainer names its latest checkpoint. Judges nothing.

Megatron and verl write it in place, so a crash leaves it empty; DeepSpeed writes it before all ranks have saved. So the
file proves nothing, and decides what the trainer loads next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prime_train.core import outside
from prime_train.core.outside import MARK_BYTES
from prime_train.core.rundir import write_atomic

_STEP = "{step}"


@dataclass(frozen=True, slots=True)
class StepTracker:
    """A file beside the step folders. `form`: its text, in which `{step}` stands for the number."""

    file: str
    form: str = _STEP


def read_tracker(folder: Path, tracker: StepTracker) -> int | None:
    """The step that the file in `folder` names; None where it names none. Raises OSError unless it is missing."""
    text = _read(folder, tracker)
    before, _, after = tracker.form.partition(_STEP)
    if not (text.startswith(before) and text.endswith(after)):
        return None
    return outside.to_count(text[len(before) : len(text) - len(after)])


def has_other_text(folder: Path, tracker: StepTracker) -> bool:
    """Whether the file names something else than a step. Raises OSError unless it is missing."""
    return bool(_read(folder, tracker)) and read_tracker(folder, tracker) is None


def _read(folder: Path, tracker: StepTracker) -> str:
    try:
        return outside.read_text(folder / tracker.file, MARK_BYTES, folder, errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def write_tracker(folder: Path, tracker: StepTracker, step: int) -> None:
    """Name this step, so that a reader sees the text before or the text after, and never half of one."""
    write_atomic(folder / tracker.file, tracker.form.replace(_STEP, str(step)), is_private=False)
