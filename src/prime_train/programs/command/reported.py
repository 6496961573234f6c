"""Where a command saves, learned from its first checkpoint and kept for the next attempt. Nothing shows it before.

With `prime_train.live` the names come from the script, so a step folder is only what is named as the reported one, and
complete only with the manifest that `live.checkpoint` wrote. A trainer with a profile may print the path of a save;
then the layouts of the profile hold in that folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from prime_train.checkpoints.folder_layout import FolderLayout
from prime_train.checkpoints.proofs import FileProof
from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.live_checkpoint import MANIFEST
from prime_train.programs.command.live_lines import LiveLine


class ReportedPlace(NamedTuple):
    """A folder with checkpoints, and how those are named; None where the trainer's profile names them."""

    folder: Path
    layout: FolderLayout | None


def find_place(checkpoint: Path, step: int, *, is_folder: bool) -> ReportedPlace | None:
    """The place of a reported checkpoint; None if its name has no step, because then the next one replaces it."""
    numbers = [match for match in re.finditer(r"\d+", checkpoint.name) if int(match[0]) == step]
    if not numbers:
        return None
    before, after = checkpoint.name[: numbers[-1].start()], checkpoint.name[numbers[-1].end() :]
    name = rf"{re.escape(before)}(\d+){re.escape(after)}"
    if is_folder:
        return ReportedPlace(checkpoint.parent, FolderLayout(name, proofs=(_manifest(MANIFEST),)))
    beside = rf"(?:\.{re.escape(MANIFEST)})?"
    proofs = (_manifest(f"*.{MANIFEST}"),)
    return ReportedPlace(checkpoint.parent, FolderLayout(name + beside, kind="file", proofs=proofs))


def find_printed_folder(path: Path, step: int | None, forms: Sequence[FolderLayout]) -> Path | None:
    """The folder of the checkpoints, by the path in a line about a save: that of a step, or with a step the folder.

    None for anything else, and where a step has parts in several folders.
    """
    if any(form.parts for form in forms):
        return None
    if any(re.compile(form.step, re.ASCII).fullmatch(path.name) for form in forms):
        return path.parent
    return path if step is not None else None


def _manifest(name: str) -> FileProof:
    return FileProof("manifest", (name,), "step")


def keep_reported(run_dir: RunDir, line: LiveLine) -> None:
    """Write down the checkpoint of a line. Raises OSError."""
    if line.checkpoint and line.of_step is not None and Path(line.checkpoint).is_absolute():
        # Whether it is a folder cannot be seen later, when it has another name or is deleted.
        kept = {"checkpoint": line.checkpoint, "step": line.of_step, "is_folder": Path(line.checkpoint).is_dir()}
        write_atomic(run_dir.reported, json.dumps(kept))


def keep_printed(run_dir: RunDir, folder: Path) -> None:
    """Write down the folder of the checkpoints that a line names. Raises OSError."""
    write_atomic(run_dir.reported, json.dumps({"folder": str(folder)}))


def read_reported(run_dir: RunDir) -> ReportedPlace | None:
    """The place of the newest reported checkpoint. None if there is none, or if its record is damaged."""
    try:
        kept = outside.read_json(run_dir.reported, RECORD_BYTES, run_dir.path)
        if "folder" in kept:
            return ReportedPlace(Path(str(kept["folder"])), None)
        step = outside.to_count(kept["step"])
        path = Path(str(kept["checkpoint"]))
        return None if step is None else find_place(path, step, is_folder=kept.get("is_folder", path.is_dir()) is True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
