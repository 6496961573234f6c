"""Makes a checkpoint of a script complete: its files are synced, then its manifest is written.

Standard library only, Python 3.9 or later.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

MANIFEST = "COMPLETE.json"


def seal(path: Path, step: int) -> Path:
    """Write the manifest of a folder or a file, last of all. Returns its absolute path. Raises OSError."""
    saved = path.absolute()
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
    write_whole(manifest, json.dumps({"version": 1, "step": step, "files": sizes}, indent=1))
    return saved


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, even after a power cut. Raises OSError."""
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
